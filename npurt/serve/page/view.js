// Messages and the list of conversations as DOM nodes.

import { element, fragment, markdown, show } from "./markdown.js";

const button = (name, textContent, label) =>
  element("button", { type: "button", name, textContent, ariaLabel: label ?? textContent });

// Returns the line under an answer: its number of tokens, its speed, its device.
export function figures(message) {
  const { tokens, rate, first, device, finish, about } = message.figures ?? {};
  const parts = [];
  if (tokens !== undefined) parts.push(`${about ? "about " : ""}${tokens} tokens`);
  if (rate) parts.push(`${rate.toFixed(1)} tokens/s`);
  if (first !== undefined) parts.push(`first after ${first.toFixed(2)} s`);
  if (device) parts.push(`on ${device}`);
  if (finish && finish !== "stop") parts.push(finish === "length" ? "cut at its most tokens" : finish);
  return parts.join(", ");
}

// Returns the article element of a message.
export function article(message, number) {
  const made = element("article", { className: message.role });
  made.dataset.number = number;
  made.append(element("details", { className: "thoughts", hidden: true },
    element("summary", { textContent: "Thoughts" }), element("div", { className: "thought" })));
  made.append(element("div", { className: "text" }));
  if (message.role === "assistant") made.append(element("p", { className: "error", role: "alert" }));
  const actions = message.role === "user"
    ? [button("edit", "Edit")]
    : [button("again", "Regenerate"), button("copy-text", "Copy"), element("span")];
  made.append(element("footer", {}, fragment(actions)));
  fill(made, message);
  return made;
}

// Updates the article element `made` to the current state of a message.
export function fill(made, message) {
  const text = made.querySelector(".text");
  if (message.role === "user") text.textContent = message.content;
  else show(text, markdown(message.content));
  made.querySelector(".thoughts").hidden = !message.thought;
  made.querySelector(".thought").textContent = message.thought ?? "";
  const error = made.querySelector(".error");
  if (error) error.hidden = !message.error;
  if (error && message.error) error.textContent = message.error;
  const line = made.querySelector("footer span");
  if (line) line.textContent = figures(message);
}

// Shows the list of conversations.
export function list(chats, current) {
  const nodes = chats.map((chat) => {
    const open = button("open", chat.title || "(empty)");
    const made = element("li", {}, open, button("delete", "✕", `Delete ${chat.title || "(empty)"}`));
    made.dataset.id = chat.id;
    if (chat.id === current) open.setAttribute("aria-current", "true");
    return made;
  });
  show(document.querySelector("#chats"), nodes);
}

// Copies a text.  navigator.clipboard exists on https and localhost only; elsewhere a hidden text
// field and execCommand copy the text.
export async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const field = element("textarea", { value: text });
  document.body.append(field);
  field.select();
  document.execCommand("copy");
  field.remove();
}
