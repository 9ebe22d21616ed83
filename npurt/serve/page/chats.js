// Conversations in the browser's localStorage.  Each conversation has its own entry, so that two
// tabs do not overwrite each other's conversations.

const PREFIX = "npurt.chat.";
const USUAL = "npurt.settings"; // key of the settings of the next conversation
const FORMAT = "npurt conversations"; // of exported files
const PARTS = ["content", "thought", "figures", "error"]; // of an answer, different in each version

// Returns a unique id.  (crypto.randomUUID() exists on https only.)
function newId() {
  const numbers = crypto.getRandomValues(new Uint32Array(4));
  return [...numbers].map((n) => n.toString(16).padStart(8, "0")).join("");
}

function read(key) {
  try {
    return JSON.parse(localStorage.getItem(key));
  } catch {
    return null; // not valid JSON
  }
}

// Omits the fields of an answer that is being generated.
const lasting = (key, value) => (key === "waiting" || key === "progress" ? undefined : value);
const isText = (value) => typeof value === "string";
const isList = (value, each) => value === undefined || (Array.isArray(value) && value.every(each));
const isMessage = (m) => m && isText(m.role) && isText(m.content)
  && isList(m.files, (file) => file && isText(file.name) && isText(file.text))
  && isList(m.versions, (kept) => kept && isList(kept.rest, isMessage));
const isChat = (chat) => chat && isText(chat.id) && isText(chat.title)
  && Array.isArray(chat.messages) && chat.messages.every(isMessage);

// Returns the fields of an object that are numbers.
function numbers(found) {
  return Object.fromEntries(Object.entries(found ?? {}).filter(([, n]) => typeof n === "number"));
}

export class Chats {
  // Returns a new conversation without messages, with the most recent settings.
  empty() {
    const { system = "", settings = {} } = read(USUAL) ?? {};
    return { id: newId(), title: "", system, settings, messages: [], revision: 0, changed: 0 };
  }

  // Returns the conversation `id`; null if it does not exist or is not valid.
  get(id) {
    const found = read(PREFIX + id);
    return isChat(found) && found.id === id ? found : null;
  }

  // Returns all conversations that contain `words`, the most recently changed first.
  all(words = "") {
    const wanted = words.trim().toLowerCase();
    const has = (text) => text.toLowerCase().includes(wanted);
    return Object.keys(localStorage)
      .filter((key) => key.startsWith(PREFIX))
      .map((key) => this.get(key.slice(PREFIX.length)))
      .filter((chat) => chat && (has(chat.title) || chat.messages.some((m) => has(m.content))))
      .sort((a, b) => b.changed - a.changed);
  }

  // Saves a conversation; if another tab has changed its entry, saves it as a new conversation.
  // Throws the browser's exception if the storage is full.
  save(chat) {
    const kept = this.get(chat.id);
    if (kept && kept.revision !== chat.revision) chat.id = newId();
    const first = chat.messages.find((message) => message.role === "user");
    if (!chat.named) chat.title = (first?.content ?? "").trim().slice(0, 60);
    const next = { ...chat, revision: chat.revision + 1, changed: Date.now() };
    localStorage.setItem(PREFIX + chat.id, JSON.stringify(next, lasting));
    Object.assign(chat, next);
  }

  // Adds conversations from a file; returns how many were added.  Those that exist are omitted.
  add(chats) {
    const known = new Set(this.all().map((chat) => JSON.stringify(chat.messages)));
    const fresh = chats.filter((chat) => isChat(chat) && !known.has(JSON.stringify(chat.messages)));
    for (const { title, named, system, settings, messages, changed } of fresh) {
      const chat = { id: newId(), title, named, system: isText(system) ? system : "", messages,
        settings: numbers(settings), revision: 1, changed: Number(changed) || 0 };
      localStorage.setItem(PREFIX + chat.id, JSON.stringify(chat));
    }
    return fresh.length;
  }

  // Stores the settings of a conversation for the next new conversation.
  usual({ system, settings }) {
    localStorage.setItem(USUAL, JSON.stringify({ system, settings }));
  }

  delete(id) {
    localStorage.removeItem(PREFIX + id);
  }

  // Calls `changed` with the id of each conversation that another tab changes.
  watch(changed) {
    addEventListener("storage", (event) => {
      if (event.key?.startsWith(PREFIX)) changed(event.key.slice(PREFIX.length));
    });
  }
}

// --- Versions of an answer -----------------------------------------------------------------------

// Stores the current version of answer `number`, and the messages after it; returns the answer.
function store(chat, number) {
  const answer = chat.messages[number];
  answer.versions ??= [];
  answer.version ??= 0;
  const kept = { rest: chat.messages.splice(number + 1) };
  for (const part of PARTS) kept[part] = answer[part];
  answer.versions[answer.version] = kept;
  return answer;
}

function become(answer, version, parts) {
  answer.version = version;
  answer.versions[version] = {}; // the answer itself has the current version
  for (const part of PARTS) answer[part] = parts[part];
}

// Begins a new version of answer `number`; an answer without text is replaced.
export function newVersion(chat, number) {
  const old = chat.messages[number];
  const failed = !old.content && number === chat.messages.length - 1;
  const answer = store(chat, number);
  become(answer, failed ? answer.version : answer.versions.length, { content: "", figures: {} });
}

// Makes `version` the current version of answer `number`, with the messages that followed it.
export function showVersion(chat, number, version) {
  const answer = store(chat, number);
  const { rest = [], ...parts } = answer.versions[version];
  become(answer, version, parts);
  chat.messages.push(...rest);
}

// --- Files of conversations --------------------------------------------------------------------------

// Lets the browser save the conversations as a file.
export function download(chats) {
  const text = JSON.stringify({ format: FORMAT, version: 1, chats });
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  link.download = `npurt-${new Date().toISOString().slice(0, 10)}.json`;
  link.click();
  URL.revokeObjectURL(link.href);
}

// Resolves to the conversations in a file that `download` made.
export async function upload(file) {
  try {
    const { format, chats } = JSON.parse(await file.text());
    if (format === FORMAT && Array.isArray(chats)) return chats;
  } catch {
    // no JSON, or no object
  }
  throw new Error(`${file.name} has no conversations of this page.`);
}
