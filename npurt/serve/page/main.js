// The page: shows one conversation at a time, and handles the user's actions.

import { Chats } from "./chats.js";
import { turns } from "./prompt.js";
import { chat as ask } from "./server.js";
import { Status } from "./status.js";
import { article, copy, fill, list } from "./view.js";

const find = (selector) => document.querySelector(selector);
const text = find("#text");
const settings = find("#settings");
const messages = find("#messages");
const chats = new Chats();
const status = new Status();
let chat = chats.empty();
let running = null; // the AbortController of the answer that is being generated
let edited = null; // the number of the message that is being edited

// --- Display -------------------------------------------------------------------------------------

function notice(words = "") {
  find("#notice").textContent = words;
  find("#notice").hidden = !words;
}

function showChat() {
  messages.replaceChildren();
  chat.messages.forEach((message, i) => messages.append(article(message, i)));
  messages.scrollTop = messages.scrollHeight;
  settings.reset();
  for (const field of settings.elements) {
    field.value = (field.name === "system" ? chat.system : chat.settings[field.name]) ?? "";
  }
  showList();
}

function showList() {
  list(chats.all(), chat.id);
}

function showEditing(number) {
  edited = number;
  find("#editing").hidden = number === null;
  text.value = number === null ? "" : chat.messages[number].content;
  text.focus();
}

function showRunning(controller) {
  running = controller;
  find("#send").hidden = controller !== null;
  find("#stop").hidden = controller === null;
}

// Shows or hides the conversations and settings on a narrow screen.
function showMenu(open) {
  find("#side").classList.toggle("open", open);
  find("#menu").setAttribute("aria-expanded", open);
}

// --- Saved conversations -------------------------------------------------------------------------

function save(kept = chat) {
  try {
    chats.save(kept);
  } catch {
    notice("The browser has no room for more: delete conversations.");
  }
  sessionStorage.setItem("npurt.open", chat.id);
  showList();
}

function open(id) {
  stop();
  notice();
  chat = chats.get(id) ?? chats.empty();
  sessionStorage.setItem("npurt.open", chat.id);
  showMenu(false);
  showChat();
  showEditing(null);
}

function remove(id) {
  if (!confirm("Delete this conversation?")) return;
  if (id === chat.id) stop();
  chats.delete(id);
  if (id === chat.id) open("");
  showList();
}

// --- Answers -------------------------------------------------------------------------------------

function send() {
  const content = text.value.trim();
  if (!content || running) return;
  if (edited !== null) chat.messages.length = edited;
  chat.messages.push({ role: "user", content });
  save();
  showChat();
  showEditing(null);
  answer();
}

function again(number) {
  if (running) return;
  chat.messages.length = number;
  save();
  showChat();
  answer();
}

function stop() {
  running?.abort();
}

// Returns the request for the next message of the conversation.
function request() {
  return { model: status.choice.model, messages: turns(chat), ...chat.settings };
}

// Requests the next message from the server, and shows it while it is generated.
async function answer() {
  const controller = new AbortController();
  const mine = chat; // the user may open another conversation in the meantime
  const body = request();
  const message = { role: "assistant", content: "", figures: {} };
  mine.messages.push(message);
  const made = article(message, mine.messages.length - 1);
  messages.append(made);
  showRunning(controller);
  notice();
  const shown = new Shown(made, message);
  const clock = new Clock(message.figures);
  try {
    for await (const part of ask(body, controller.signal)) {
      const choice = part.choices?.[0];
      const delta = choice?.delta ?? {};
      if (delta.reasoning_content) message.thought = (message.thought ?? "") + delta.reasoning_content;
      message.content += delta.content ?? "";
      if (delta.content || delta.reasoning_content) clock.tick();
      if (choice?.finish_reason) message.figures.finish = choice.finish_reason;
      if (part.usage) clock.end(part.usage.completion_tokens);
      shown.later();
    }
  } catch (error) {
    if (error.name === "AbortError") message.figures.finish = "stopped";
    else message.error = error.message;
  }
  message.figures.device = status.device;
  shown.now();
  if (running === controller) showRunning(null);
  keep(mine);
  status.read();
}

// Saves the conversation `mine`, unless the user has deleted it; if it is open again, shows it.
function keep(mine) {
  if (mine !== chat && !chats.get(mine.id)) return;
  save(mine);
  if (mine !== chat && mine.id === chat.id) open(mine.id);
}

// Measures the tokens of an answer and their speed.
class Clock {
  constructor(figures) {
    this.figures = Object.assign(figures, { tokens: 0, about: true });
    this.began = performance.now();
  }

  // Counts one piece of text, which usually is one token.
  tick() {
    this.last = performance.now();
    this.firstAt ??= this.last;
    this.figures.first = (this.firstAt - this.began) / 1000;
    this.count(this.figures.tokens + 1);
  }

  // Sets the exact count of tokens, from the server's usage.
  end(tokens) {
    this.figures.about = false;
    this.count(tokens);
  }

  count(tokens) {
    const seconds = (this.last - this.firstAt) / 1000;
    this.figures.tokens = tokens;
    this.figures.rate = seconds > 0 ? (tokens - 1) / seconds : undefined;
  }
}

// Updates the view of a growing message.  The updates take at most a quarter of the time, and leave
// the scroll position if the reader has scrolled up.
class Shown {
  constructor(made, message) {
    Object.assign(this, { made, message, timer: null, took: 0 });
  }

  later() {
    this.timer ??= setTimeout(() => this.now(), Math.max(30, 3 * this.took));
  }

  now() {
    clearTimeout(this.timer);
    this.timer = null;
    const began = performance.now();
    const atEnd = messages.scrollTop + messages.clientHeight > messages.scrollHeight - 40;
    fill(this.made, this.message);
    if (atEnd) messages.scrollTop = messages.scrollHeight;
    this.took = performance.now() - began;
  }
}

// --- Keys and buttons ----------------------------------------------------------------------------

find("#composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
text.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    send();
  } else if (event.key === "ArrowUp" && !text.value && !running) {
    const last = chat.messages.findLastIndex((message) => message.role === "user");
    if (last >= 0) {
      event.preventDefault(); // leaves the cursor at the end of the text
      showEditing(last);
    }
  }
});
addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !find("#ask-key").open) {
    if (running) stop();
    else if (edited !== null) showEditing(null);
    showMenu(false);
  } else if (event.altKey && event.code === "KeyN") {
    event.preventDefault();
    open("");
  }
});
find("#stop").addEventListener("click", stop);
find("#keep").addEventListener("click", () => showEditing(null));
find("#new").addEventListener("click", () => open(""));
find("#menu").addEventListener("click", () => showMenu(!find("#side").classList.contains("open")));
find("#chats").addEventListener("click", (event) => {
  const { name } = event.target;
  const id = event.target.closest("li")?.dataset.id;
  if (name === "open") open(id);
  if (name === "delete") remove(id);
});
messages.addEventListener("click", (event) => {
  const { name, className } = event.target;
  const number = Number(event.target.closest("article")?.dataset.number);
  if (name === "edit" && !running) showEditing(number);
  if (name === "again") again(number);
  if (name === "copy-text") copy(chat.messages[number].content);
  if (className === "copy") copy(event.target.closest("figure").querySelector("code").textContent);
});
settings.addEventListener("submit", (event) => event.preventDefault());
settings.addEventListener("change", () => {
  chat.settings = {};
  for (const field of settings.elements) {
    if (field.name === "system") chat.system = field.value;
    else if (field.value && field.checkValidity()) chat.settings[field.name] = Number(field.value);
    else field.reportValidity();
  }
  chats.usual(chat);
  if (chat.messages.length && !running) save();
});
chats.watch((id) => {
  if (id === chat.id && !running && edited === null) {
    chat = chats.get(id) ?? chat;
    showChat();
  }
  showList();
});
addEventListener("pagehide", () => {
  if (running) save();
});

chat = chats.get(sessionStorage.getItem("npurt.open") ?? "") ?? chats.empty();
showChat();
status.read();
