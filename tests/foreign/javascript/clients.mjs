// The official JavaScript clients of the protocols, one after the other, against a running service: `node clients.mjs URL`.
// Prints one line of JSON; the Python test that starts this file compares it.
import { GlobalWindow } from "happy-dom";

const url = process.argv[2];
const found = {};

async function langgraphRuns() {
  const { Client } = await import("@langchain/langgraph-sdk");
  const client = new Client({ apiUrl: url });
  const thread = await client.threads.create();
  const input = { messages: [{ role: "user", content: "first" }] };
  let run;
  const parts = [];
  const stream = client.runs.stream(thread.thread_id, "chat", {
    input, streamMode: ["values", "messages-tuple"], onRunCreated: (created) => { run = created; },
  });
  for await (const part of stream) parts.push(part);
  const state = await client.threads.getState(thread.thread_id);
  const joined = await client.runs.join(thread.thread_id, run.run_id);
  found.runs = {
    pieces: parts.filter((part) => part.event === "messages").map((part) => part.data[0].content).join(""),
    texts: state.values.messages.map((message) => message.content),
    joined: joined.messages.length,
    named: run.thread_id === thread.thread_id,
  };
}

async function langgraphReact() {
  const window = new GlobalWindow({ url });
  for (const name of ["document", "window", "navigator", "HTMLElement"]) {
    Object.defineProperty(globalThis, name, { value: name === "window" ? window : window[name], configurable: true });
  }
  globalThis.IS_REACT_ACT_ENVIRONMENT = false;
  const { createElement, useEffect } = await import("react");
  const { createRoot } = await import("react-dom/client");
  const { useStream } = await import("@langchain/react");
  const done = new Promise((resolve, reject) => {
    let sent = false;
    let settled;
    function Chat() {
      const stream = useStream({ apiUrl: url, assistantId: "chat" });
      useEffect(() => {
        if (!sent) {
          sent = true;
          stream.submit({ messages: [{ type: "human", content: "first" }] }).catch(reject);
        }
      }, []);
      useEffect(() => {
        const texts = (stream.messages ?? []).map((message) => message.text ?? message.content);
        if (stream.error) reject(stream.error);
        // The end of the run is in another stream than its messages, and may come before the last of them.
        clearTimeout(settled);
        if (texts.length === 2 && !stream.isLoading) settled = setTimeout(() => resolve(texts), 1000);
      });
      return null;
    }
    createRoot(window.document.createElement("div")).render(createElement(Chat));
  });
  found.react = await done;
}

async function aiSdk() {
  const { DefaultChatTransport, readUIMessageStream } = await import("ai");
  const transport = new DefaultChatTransport({ api: `${url}/api/v1/ai-sdk/chat` });
  // As `sendMessage({text, messageId})` does it: an edited message keeps its id.
  async function told(text, messageId) {
    const messages = [{ id: "m1", role: "user", parts: [{ type: "text", text }] }];
    const stream = await transport.sendMessages({
      chatId: "ai", messages, trigger: "submit-message", messageId, abortSignal: undefined,
    });
    let last;
    for await (const message of readUIMessageStream({ stream })) last = message;
    return [last.id, last.parts.filter((part) => part.type === "text").map((part) => part.text).join("")];
  }
  const [first, edited, repeated] = [await told("first"), await told("second", "m1"), await told("second", "m1")];
  found.ai = first[1];
  found.edited = { answer: edited[1], isNew: edited[0] !== first[0], once: edited[0] === repeated[0] };
  found.resumed = await transport.reconnectToStream({ chatId: "ai" });
}

async function agUi() {
  const { HttpAgent, buildResumeArray } = await import("@ag-ui/client");
  const agent = new HttpAgent({ url: `${url}/api/v1/ag-ui`, threadId: "ag" });
  for (const [id, content] of [["a", "first"], ["b", "second"]]) {
    agent.messages.push({ id, role: "user", content });
    await agent.runAgent({ runId: `run-${id}` });
  }
  found.agUi = agent.messages.map((message) => message.content);
  const asking = new HttpAgent({ url: `${url}/api/v1/ag-ui`, threadId: "asking" });
  asking.messages.push({ id: "a", role: "user", content: "Pay." });
  const forwardedProps = { workflow: "asking" };
  await asking.runAgent({ runId: "run-a", forwardedProps });
  const asked = asking.pendingInterrupts;
  const resume = buildResumeArray(asked, { [asked[0].id]: { status: "resolved", payload: "yes" } });
  await asking.runAgent({ runId: "run-b", forwardedProps, resume });
  const left = asking.pendingInterrupts.length;
  const texts = asking.messages.map((message) => message.content);
  found.agUiAsks = { asked: asked.map((one) => one.message), left, texts };
}

for (const part of [langgraphRuns, aiSdk, agUi, langgraphReact]) await part();
console.log(JSON.stringify(found));
process.exit(0);
