-- Where in the graph store agents keep conversations by themselves, so that whoever lists or erases what people said
-- finds them there. A namespace is its labels joined by full stops.
CREATE TABLE chat_conversation_layouts (
    namespace       TEXT NOT NULL,
    meta_key_suffix TEXT NOT NULL,
    value_field     TEXT NOT NULL,
    first_used_at   TEXT NOT NULL,
    PRIMARY KEY (namespace, meta_key_suffix, value_field)
) WITHOUT ROWID;
