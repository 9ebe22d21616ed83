// Messages and the list of conversations as DOM nodes.

import { element, fragment, markdown, show } from "./markdown.js";

const FINISHES = { length: "reached the limit of tokens", stopped: "stopped" };
const EXAMPLES = [
  "Explain what an NPU is in three sentences.",
  "Write a Python function that checks whether a text is a palindrome.",
  "Make a table of three sorting algorithms, with their running times.",
  "Correct the grammar: \"He go to school yesterday.\"",
];

const button = (name, textContent, label) =>
  element("button", { type: "button", name, textContent, ariaLabel: label ?? textContent });

// Returns the line under an answer: its number of tokens, its speed, its device.
export function figures(message) {
  const { tokens, rate, first, device, finish, about } = message.figures ?? {};
  const parts = [];
  if (tokens !== undefined) parts.push(`${about ? "about " : ""}${tokens} tokens`);
  if (rate) parts.push(`${Number(rate).toFixed(1)} tokens/s`);
  if (first !== undefined) parts.push(`first after ${Number(first).toFixed(2)} s`);
  if (device) parts.push(`on ${device}`);
  if (finish && finish !== "stop") parts.push(FINISHES[finish] ?? finish);
  return parts.join(", ");
}

// Returns the article element of a message.
export function article(message, number) {
  const made = element("article", { className: message.role });
  made.dataset.number = number;
  if (message.role === "assistant") {
    made.append(element("details", { className: "thoughts" },
      element("summary", { textContent: "Thoughts" }), element("div", { className: "thought" })));
  }
  made.append(element("div", { className: "text" }));
  for (const file of message.files ?? []) {
    made.append(element("details", { className: "file" }, element("summary", { textContent: file.name }),
      element("pre", { textContent: file.text })));
  }
  if (message.role === "assistant") {
    made.append(
      element("p", { className: "reading", role: "status" }, element("progress"), element("span")),
      element("p", { className: "error", role: "alert" }),
      element("footer", {}, element("span", { className: "versions" }, button("older", "‹", "Older version"),
        element("span"), button("newer", "›", "Newer version")), button("again", "Regenerate"),
      button("continue", "Continue"), button("copy-text", "Copy"), element("span", { className: "figures" })),
    );
  } else {
    made.append(element("footer", {}, button("edit", "Edit")));
  }
  fill(made, message);
  return made;
}

// Updates the article element `made` to the current state of a message.
export function fill(made, message) {
  const text = made.querySelector(".text");
  if (message.role !== "assistant") {
    text.textContent = message.content;
    return;
  }
  show(text, markdown(message.content));
  made.querySelector(".thoughts").hidden = !message.thought;
  made.querySelector(".thought").textContent = message.thought ?? "";
  const error = made.querySelector(".error");
  error.hidden = !message.error;
  error.textContent = message.error ?? "";
  fillReading(made.querySelector(".reading"), message);
  const count = message.versions?.length ?? 1;
  const versions = made.querySelector(".versions");
  versions.hidden = count < 2;
  versions.querySelector("span").textContent = `${(message.version ?? 0) + 1}/${count}`;
  const { finish } = message.figures ?? {};
  const cut = (finish && finish !== "stop") || message.error;
  made.querySelector("[name=continue]").hidden = !message.content || !cut;
  made.querySelector(".figures").textContent = figures(message);
}

// Shows how much of the prompt has been read, until the answer begins.
function fillReading(line, { waiting, progress, content, thought }) {
  line.hidden = !waiting || Boolean(content || thought);
  const bar = line.querySelector("progress");
  bar.hidden = !progress;
  if (progress) Object.assign(bar, { max: progress.total, value: progress.processed });
  line.querySelector("span").textContent = progress
    ? `Reading the prompt: ${progress.processed} of ${progress.total} tokens` : "Waiting for the model";
}

// Returns the screen of a conversation without messages.
export function start(model) {
  const examples = EXAMPLES.map((text) => button("example", text));
  return element("section", { className: "start" },
    element("h2", { textContent: model ? `Ask ${model}` : "Ask the model" }), ...examples);
}

// Shows the list of conversations.
export function list(chats, current) {
  const nodes = chats.map((chat) => {
    const title = chat.title || "(empty)";
    const open = button("open", title);
    const made = element("li", {}, open, button("rename", "✎", `Rename ${title}`),
      button("delete", "✕", `Delete ${title}`));
    made.dataset.id = chat.id;
    if (chat.id === current) open.setAttribute("aria-current", "true");
    return made;
  });
  show(document.querySelector("#chats"), nodes);
}

// Shows the files that the next message gets.
export function chips(files) {
  const box = document.querySelector("#attached");
  box.hidden = !files.length;
  show(box, files.map(({ name }, i) => {
    const made = element("li", {}, name, button("detach", "✕", `Remove ${name}`));
    made.dataset.number = i;
    return made;
  }));
}

// Shows how much of the context a conversation uses.
export function gauge(message, context) {
  const used = Number(message?.figures?.used); // an imported conversation may have anything
  const box = document.querySelector("#gauge");
  box.hidden = !used || !context;
  if (box.hidden) return;
  Object.assign(box.querySelector("meter"), { max: context, high: context * 0.8, value: used });
  box.querySelector("span").textContent = `Context: ${used} of ${context} tokens`;
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
