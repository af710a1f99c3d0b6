// The console works without this script, which adds live answers, forms that keep their text if they cannot be sent,
// local times and keyboard shortcuts.
"use strict";

const RETRY_MILLISECONDS = 2000;
const SETTLE_MILLISECONDS = 300;
const AWAY = "The service does not answer. This page continues when it does.";
const SIGNED_OUT = "You are signed out. Sign in again in another tab; this page keeps what you wrote.";
const OTHER_USER = "You are signed in for another user now. Reload this page to see that user's data.";
const UNSENT = "The service does not answer, so nothing was sent. What you wrote is still here; send it again.";
const UNSTORED = "The service cannot store the message yet, and tries again. It appears here when it is stored.";
const UNSTORED_TRIES = 150;
const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

/* ---- Newer versions of the page ---- */

// Return a name for each node, by which its counterpart in a newer version of the page is found.
function named(nodes) {
  const found = new Map();
  for (const node of nodes) {
    const fields = node.tagName === "FORM" ? [node.getAttribute("action"), node.elements.message_id?.value] : [];
    const name = [node.nodeName, node.id, node.className, node.dataset?.live, ...fields].join(" ");
    let number = 1;
    while (found.has(`${name} ${number}`)) number += 1;
    found.set(`${name} ${number}`, node);
  }
  return found;
}

// Change a shown node into a newer version of it. Nodes that are in both stay in the page, and with them the focus, the
// selection, typed text and open details.
function update(shown, newer) {
  const isStreamed = shown.parentElement?.dataset.live && shown.className === "text";
  if (isStreamed || shown.isEqualNode(newer)) return;
  if (shown.nodeType !== Node.ELEMENT_NODE) {
    shown.nodeValue = newer.nodeValue;
    return;
  }
  // A message that could not be sent keeps its id, so that the service stores it only once.
  if (shown.name === "form_id" && shown.form.querySelector("textarea").value) return;
  for (const { name } of [...shown.attributes]) {
    if (name !== "open" && !newer.hasAttribute(name)) shown.removeAttribute(name);
  }
  for (const { name, value } of newer.attributes) {
    if (name !== "open" && shown.getAttribute(name) !== value) shown.setAttribute(name, value);
  }
  const known = named(shown.childNodes);
  const wanted = named(newer.childNodes);
  for (const [name, node] of known) {
    // The reason why a form was not accepted stays beside what was written.
    const isReason = shown.tagName === "FORM" && node.matches?.("[role=alert]");
    if (!wanted.has(name) && !isReason) node.remove();
  }
  let next = shown.firstChild;
  for (const [name, node] of wanted) {
    const kept = known.get(name);
    // An element that is moved loses the focus, so let it stay, and move the white space around it.
    while (kept?.tagName && next && !next.tagName) next = next.nextSibling;
    if (kept && kept === next) next = next.nextSibling;
    else shown.insertBefore(kept || node, next);
    if (kept) update(kept, node);
  }
}

const atEnd = () => innerHeight + scrollY > document.body.scrollHeight - 200;
const parsed = async (response) => new DOMParser().parseFromString(await response.text(), "text/html");
const isSignIn = (response) => response.redirected && new URL(response.url).pathname === "/console/sign-in";
const request = (address, more) => fetch(address, { ...more, headers: { accept: "text/html" } });

function tell(text) {
  document.querySelector("[role=status]").textContent = text;
}

let shownAt = 0;

// Show a newer version of the page. If it has become longer, and the reader is at its end, stay there.
function show(newer, toEnd = false) {
  const stay = atEnd();
  const height = document.body.scrollHeight;
  document.title = newer.title;
  update(document.body, newer.body);
  begin();
  shownAt = performance.now();
  const grew = document.body.scrollHeight > height;
  if (toEnd || (stay && grew)) document.getElementById("end")?.scrollIntoView({ block: "end" });
}

// Get the newest version of the page, and show it. While the service does not answer, say so and try again. With
// `keepsText`, an error page does not replace a page on which the reader has written something.
async function refresh(keepsText = false) {
  for (;;) {
    const askedAt = performance.now();
    const response = await request(location.href).catch(() => null);
    if (response && isSignIn(response)) return tell(SIGNED_OUT);
    const isAnswer = response && response.status < 500 && response.status !== 429;
    const newer = isAnswer && (await parsed(response).catch(() => null));
    // Do not replace a page that was requested later, as after a form was sent; request it again.
    if (newer && askedAt < shownAt) continue;
    // Keep the old page: a form that was filled in for one user must not be sent for another.
    if (newer && newer.body.dataset.user !== document.body.dataset.user) return tell(OTHER_USER);
    const texts = keepsText && newer && !response.ok ? [...document.querySelectorAll("textarea")] : [];
    if (texts.some((one) => one.value !== one.defaultValue)) {
      return tell(newer.querySelector(".cure")?.textContent.trim() || AWAY);
    }
    if (newer) return show(newer);
    tell(AWAY);
    await pause(RETRY_MILLISECONDS);
  }
}

/* ---- Live answers ---- */

const streams = new Map();

// Append the pieces of an active run's answer as they arrive, and refresh the page when the run changes and at its end.
function follow(live) {
  const text = live.querySelector(".text");
  const events = new EventSource(live.dataset.live);
  let source = null;
  let reopened = true;
  let refreshing = 0;
  const end = async () => {
    events.close();
    await refresh();
    streams.delete(live);
    begin();
  };
  events.addEventListener("open", () => {
    tell("");
    reopened = true;
  });
  events.addEventListener("token", (event) => {
    const piece = JSON.parse(event.data);
    const stay = atEnd();
    // Each connection sends all pieces from the beginning.
    if (reopened) text.textContent = "";
    else if (source !== piece.node + piece.message_id) text.append("\n\n");
    reopened = false;
    source = piece.node + piece.message_id;
    text.append(piece.text);
    if (stay) (document.getElementById("end") || live).scrollIntoView({ block: "end" });
  });
  for (const name of live.dataset.changes.split(" ")) {
    events.addEventListener(name, () => {
      clearTimeout(refreshing);
      refreshing = setTimeout(() => events.readyState === EventSource.OPEN && refresh(), SETTLE_MILLISECONDS);
    });
  }
  events.addEventListener("end", end);
  events.addEventListener("error", async (event) => {
    if (event.data !== undefined) return end();
    // Without data, the connection is lost. The browser opens it again, unless the service refused it.
    if (events.readyState !== EventSource.CLOSED) return tell(AWAY);
    await pause(RETRY_MILLISECONDS);
    await end();
  });
  return events;
}

/* ---- Forms ---- */

const sending = new WeakSet();

function fail(form, text) {
  const told = form.querySelector("[role=alert]") || form.appendChild(document.createElement("p"));
  told.className = "notice";
  told.setAttribute("role", "alert");
  told.textContent = text;
}

// Return a text that changes when the transcript gets a message or a reset.
function newest() {
  const shown = document.querySelectorAll(".chat > article, .chat > .reset");
  return `${shown.length} ${shown[shown.length - 1]?.id}`;
}

// Refresh the page until it shows the message (or the reset) that was sent, which the service stores when its database answers.
async function waitForMessage(before) {
  for (let tries = 0; newest() === before && tries < UNSTORED_TRIES; tries += 1) {
    tell(UNSTORED);
    await pause(RETRY_MILLISECONDS);
    await refresh();
  }
}

// Send a form, and show the page that the service returns. If it was not accepted, say why next to the form.
async function send(form, isRepeat = false) {
  const body = new URLSearchParams(new FormData(form));
  const before = newest();
  const response = await request(form.action, { method: "POST", body }).catch(() => null);
  if (!response) return fail(form, UNSENT);
  if (isSignIn(response)) return fail(form, SIGNED_OUT);
  const newer = await parsed(response);
  if (response.status === 403 && !isRepeat) {
    // The service has restarted since it rendered the form: get the form's new token.
    await refresh();
    if (form.isConnected) return send(form, true);
  }
  // The error page of a proxy in front of the service has no cure.
  const cures = [...newer.querySelectorAll(".cure")].map((one) => one.textContent);
  if (!response.ok) return fail(form, cures.join(" ") || UNSENT);
  form.querySelector("[role=alert]")?.remove();
  const address = new URL(response.url);
  if ("stay" in form.dataset) return refresh();
  if (address.pathname + address.search !== location.pathname + location.search) {
    location.assign(newer.getElementById("end") ? `${response.url}#end` : response.url);
    return;
  }
  // Keep what was written since: it is the next message, with an id of its own.
  if (new FormData(form).get("message") === body.get("message")) form.reset();
  else if (form.elements.form_id) form.elements.form_id.value = newer.querySelector("[name=form_id]").value;
  const details = form.closest("details");
  details?.removeAttribute("open");
  show(newer, newer.getElementById("end") !== null);
  // A form that is closed, as that of a reset, gives the focus to its summary. One that the newer page no longer has, as
  // that of an edited message, gives it to the field at the end.
  if (form.isConnected) (form.querySelector("[data-send]") || details?.querySelector("summary"))?.focus();
  else document.querySelector(".composer [data-send]")?.focus();
  if (form.classList.contains("composer")) waitForMessage(before);
}

addEventListener("submit", async (event) => {
  const form = event.target;
  // Signing in and out are navigations, which the browser does best.
  if (form.method !== "post" || !form.closest("main") || !form.elements.csrf) return;
  event.preventDefault();
  if (sending.has(form)) return;
  sending.add(form);
  form.setAttribute("aria-busy", "true");
  await send(form);
  form.removeAttribute("aria-busy");
  sending.delete(form);
});

/* ---- Times and keys ---- */

// Let the keyboard reach a table that scrolls because it is wider than its card.
function reachTables() {
  for (const table of document.querySelectorAll(".table")) {
    if (table.scrollWidth > table.clientWidth) table.tabIndex = 0;
    else table.removeAttribute("tabindex");
  }
}

// Show times in the reader's time zone. The age of a moment grows while the page is open.
function showTimes() {
  for (const time of document.querySelectorAll("time[datetime]")) {
    const moment = new Date(time.dateTime);
    const minutes = Math.floor((Date.now() - moment) / 60_000);
    const count = minutes < 60 ? minutes : Math.floor(minutes / 60);
    const age = `${count} ${minutes < 60 ? "minute" : "hour"}${count === 1 ? "" : "s"} ago`;
    const date = moment.toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
    time.textContent = minutes < 1 ? "just now" : minutes < 24 * 60 ? age : date;
    time.title = moment.toLocaleString([], { dateStyle: "full", timeStyle: "long" });
  }
}

// Ctrl+Enter sends the form; "/" moves to the search field, as on other sites.
addEventListener("keydown", (event) => {
  const field = event.target;
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && field.matches("[data-send]")) {
    event.preventDefault();
    field.form.requestSubmit();
  }
  if (event.key === "/" && !field.matches("input, textarea, select")) {
    const search = document.querySelector("[data-search], input[type=search]");
    if (search) {
      event.preventDefault();
      search.focus();
    }
  }
});

// The second click of a double click must not press a button that took the place of the first one.
addEventListener(
  "click",
  (event) => {
    if (event.detail > 1 && event.target.closest("button")) event.preventDefault();
  },
  { capture: true },
);

// Follow what is live in the page, and no longer what is not.
function begin() {
  for (const [live, events] of streams) {
    if (live.isConnected) continue;
    events.close();
    streams.delete(live);
  }
  for (const live of document.querySelectorAll("[data-live]")) {
    if (!streams.has(live)) streams.set(live, follow(live));
  }
  showTimes();
  reachTables();
}

begin();
setInterval(showTimes, 60_000);
addEventListener("resize", reachTables);

// Another tab or person may have changed a transcript or a list meanwhile.
let returning = false;
addEventListener("focus", async () => {
  if (returning || !document.querySelector(".chat, .list, .tree, .table, .narrow[role=alert]")) return;
  returning = true;
  await refresh(true);
  returning = false;
});
