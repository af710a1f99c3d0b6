// The console works without this script, which adds live answers, local times and keyboard shortcuts.
"use strict";

// An active run: append the pieces of its answer as they arrive, and reload the page at its end.
for (const live of document.querySelectorAll("[data-live]")) {
  const text = live.querySelector(".text");
  const events = new EventSource(live.dataset.live);
  let node = null;
  const reload = () => {
    events.close();
    location.reload();
  };
  const atEnd = () => innerHeight + scrollY > document.body.scrollHeight - 200;
  events.addEventListener("token", (event) => {
    const piece = JSON.parse(event.data);
    const follow = atEnd();
    if (node !== null && piece.node !== node) text.append("\n\n");
    node = piece.node;
    text.append(piece.text);
    if (follow) live.scrollIntoView({ block: "end" });
  });
  events.addEventListener("end", reload);
  events.addEventListener("error", (event) => {
    // An error without data is a lost connection, which the browser reopens after the last event.
    if (event.data !== undefined) reload();
    else if (events.readyState === EventSource.CLOSED) setTimeout(reload, 2000);
  });
}

// Show times in the reader's time zone.
for (const time of document.querySelectorAll("time[datetime]")) {
  time.title = new Date(time.dateTime).toLocaleString();
}

// Ctrl+Enter sends the form; "/" moves to the search field, as on other sites.
document.addEventListener("keydown", (event) => {
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

// Send a form only once, even after a double click.
document.addEventListener("submit", (event) => {
  if (event.target.dataset.sent) event.preventDefault();
  else if (event.target.method === "post") event.target.dataset.sent = "yes";
});
addEventListener("pageshow", () => {
  for (const form of document.forms) delete form.dataset.sent;
});
