// The page: shows one conversation at a time, and handles the user's actions.

import { Shown, stream } from "./answer.js";
import { Chats, download, newVersion, showVersion, upload } from "./chats.js";
import { attached, oldest, turns } from "./prompt.js";
import { chat as ask } from "./server.js";
import { Status } from "./status.js";
import { article, chips, copy, gauge, list, start } from "./view.js";

const THEME = "npurt.theme";
const find = (selector) => document.querySelector(selector);
const text = find("#text");
const settings = find("#settings");
const messages = find("#messages");
const chats = new Chats();
const LEFT_OUT = "The conversation is longer than the model's context: from now on its oldest messages are not sent.";
const status = new Status(() => {
  if (!chat.messages.length) showChat(); // the start screen has the model's name
  showGauge();
});
let chat = chats.empty();
let running = null; // the AbortController of the answer that is being generated
let edited = null; // the number of the message that is being edited
let files = []; // the files that the next message gets

// --- Display -------------------------------------------------------------------------------------

function notice(words = "") {
  find("#notice").textContent = words;
  find("#notice").hidden = !words;
}

function showChat() {
  const nodes = chat.messages.map((message, i) => article(message, i));
  messages.replaceChildren(...(nodes.length ? nodes : [start(status.model)]));
  messages.scrollTop = messages.scrollHeight;
  settings.reset();
  for (const field of settings.elements) {
    field.value = (field.name === "system" ? chat.system : chat.settings[field.name]) ?? "";
  }
  showList();
  showGauge();
}

function showList() {
  list(chats.all(find("#search").value), chat.id);
}

function showGauge() {
  gauge(chat.messages.findLast((message) => message.figures?.used), status.context);
}

function showEditing(number) {
  edited = number;
  find("#editing").hidden = number === null;
  text.value = number === null ? "" : chat.messages[number].content;
  showFiles(number === null ? [] : chat.messages[number].files ?? []);
  text.focus();
}

function showFiles(chosen) {
  files = chosen;
  chips(files);
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

function showTheme(theme) {
  find("#theme").value = theme;
  document.documentElement.dataset.theme = theme;
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

function rename(id) {
  const kept = id === chat.id ? chat : chats.get(id);
  const title = prompt("Name of the conversation:", kept?.title)?.trim();
  if (!title) return;
  Object.assign(kept, { title: title.slice(0, 200), named: true });
  save(kept);
}

async function load(file) {
  try {
    const count = chats.add(await upload(file));
    notice(`${count} new conversations.`);
  } catch (error) {
    notice(error.message);
  }
  showList();
}

async function attach(chosen) {
  for (const file of chosen) {
    try {
      showFiles([...files, await attached(file)]);
    } catch (error) {
      notice(error.message);
    }
  }
  text.focus();
}

// --- Answers -------------------------------------------------------------------------------------

function send() {
  const content = text.value.trim();
  if ((!content && !files.length) || running) return;
  if (edited !== null) chat.messages.length = edited;
  chat.messages.push({ role: "user", content, ...(files.length ? { files } : {}) });
  chat.messages.push({ role: "assistant", content: "", figures: {} });
  showEditing(null);
  answer();
}

function again(number) {
  if (running) return;
  newVersion(chat, number);
  answer();
}

function turn(number, by) {
  const { version, versions } = chat.messages[number];
  if (running || !versions[version + by]) return;
  showVersion(chat, number, version + by);
  save();
  showChat();
}

function stop() {
  running?.abort();
}

// Leaves out the oldest turns of `mine` from now on; returns whether there are any to leave out.
function leaveOut(mine) {
  const count = oldest(mine.messages, mine.leftOut ?? 0);
  if (count && !mine.leftOut) notice(LEFT_OUT);
  mine.leftOut = (mine.leftOut ?? 0) + count;
  return count > 0;
}

// Yields the chunks of the next message of the conversation `mine`.  Leaves out its oldest turns if
// the server finds it too long, or the last answer left less than an eighth of the context.
async function* shortened(mine, body, signal) {
  const last = mine.messages.slice(0, -1).findLast((message) => message.figures?.used)?.figures;
  const isCurrent = last && (last.leftOut ?? 0) === (mine.leftOut ?? 0);
  if (isCurrent && last.used > (status.context * 7) / 8) leaveOut(mine);
  for (;;) {
    try {
      yield* ask({ ...body, messages: turns(mine) }, signal);
      return;
    } catch (error) {
      if (!error.isContextFull || !leaveOut(mine)) throw error;
    }
  }
}

// Requests the text of the last message from the server, and shows it while it is generated.  A
// message that has text is continued.
async function answer() {
  const controller = new AbortController();
  const mine = chat; // the user may open another conversation in the meantime
  const message = mine.messages.at(-1);
  const rest = message.content ? { continue_final_message: true, add_generation_prompt: false } : {};
  const body = { model: status.choice.model, ...mine.settings, ...rest };
  if (!(mine.leftOut < mine.messages.length - 1)) mine.leftOut = 0;
  delete message.error;
  save();
  message.waiting = true;
  showChat();
  showRunning(controller);
  notice();
  const shown = new Shown(messages.lastElementChild, message);
  await stream(shortened(mine, body, controller.signal), message, () => shown.later());
  message.figures.device = status.device;
  if (mine.leftOut) message.figures.leftOut = mine.leftOut;
  shown.now();
  if (running === controller) showRunning(null);
  keep(mine);
  showGauge();
  status.read();
}

// Saves the conversation `mine`, unless the user has deleted it; if it is open again, shows it.
function keep(mine) {
  if (mine !== chat && !chats.get(mine.id)) return;
  save(mine);
  if (mine !== chat && mine.id === chat.id) open(mine.id);
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
find("#search").addEventListener("input", showList);
find("#attach").addEventListener("click", () => find("#files").click());
find("#import").addEventListener("click", () => find("#imported").click());
find("#export").addEventListener("click", () => download(chats.all()));
for (const [selector, take] of [["#files", attach], ["#imported", ([file]) => load(file)]]) {
  find(selector).addEventListener("change", async ({ target }) => {
    await take([...target.files]);
    target.value = ""; // so that the same file can be chosen again
  });
}
find("#attached").addEventListener("click", (event) => {
  const number = Number(event.target.closest("li")?.dataset.number);
  if (event.target.name === "detach") showFiles(files.filter((_, i) => i !== number));
});
find("#theme").addEventListener("change", ({ target }) => {
  localStorage.setItem(THEME, target.value);
  showTheme(target.value);
});
find("#chats").addEventListener("click", (event) => {
  const { name } = event.target;
  const id = event.target.closest("li")?.dataset.id;
  if (name === "open") open(id);
  if (name === "rename") rename(id);
  if (name === "delete") remove(id);
});
messages.addEventListener("click", (event) => {
  const { name, className } = event.target;
  const number = Number(event.target.closest("article")?.dataset.number);
  if (name === "edit" && !running) showEditing(number);
  if (name === "again") again(number);
  if (name === "continue" && !running) answer();
  if (name === "older") turn(number, -1);
  if (name === "newer") turn(number, 1);
  if (name === "copy-text") copy(chat.messages[number].content);
  if (className === "copy") copy(event.target.closest("figure").querySelector("code").textContent);
  if (name === "example") {
    text.value = event.target.textContent;
    send();
  }
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

showTheme(localStorage.getItem(THEME) ?? "");
chat = chats.get(sessionStorage.getItem("npurt.open") ?? "") ?? chats.empty();
showChat();
status.read();
