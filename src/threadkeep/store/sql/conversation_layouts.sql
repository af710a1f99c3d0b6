-- Layouts of conversations that agents store in a LangGraph store.

-- name: add_layout
INSERT INTO chat_conversation_layouts (namespace, meta_key_suffix, value_field, first_used_at)
VALUES (:namespace, :meta_key_suffix, :value_field, :now)
ON CONFLICT (namespace, meta_key_suffix, value_field) DO NOTHING

-- name: layouts
SELECT namespace, meta_key_suffix, value_field FROM chat_conversation_layouts
ORDER BY namespace, meta_key_suffix, value_field
