// Conversations in the browser's localStorage.  Each conversation has its own entry, so that two
// tabs do not overwrite each other's conversations.

const PREFIX = "npurt.chat.";
const USUAL = "npurt.settings"; // key of the settings of the next conversation

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

const isText = (value) => typeof value === "string";

export class Chats {
  // Returns a new conversation without messages, with the most recent settings.
  empty() {
    const { system = "", settings = {} } = read(USUAL) ?? {};
    return { id: newId(), title: "", system, settings, messages: [], revision: 0, changed: 0 };
  }

  // Returns the conversation `id`; null if it does not exist or is not valid.
  get(id) {
    const found = read(PREFIX + id);
    const whole = found && found.id === id && isText(found.title) && Array.isArray(found.messages)
      && found.messages.every((m) => m && isText(m.role) && isText(m.content));
    return whole ? found : null;
  }

  // Returns all conversations, the most recently changed first.
  all() {
    return Object.keys(localStorage)
      .filter((key) => key.startsWith(PREFIX))
      .map((key) => this.get(key.slice(PREFIX.length)))
      .filter(Boolean)
      .sort((a, b) => b.changed - a.changed);
  }

  // Saves a conversation; if another tab has changed its entry, saves it as a new conversation.
  // Throws the browser's exception if the storage is full.
  save(chat) {
    const kept = this.get(chat.id);
    if (kept && kept.revision !== chat.revision) chat.id = newId();
    const first = chat.messages.find((message) => message.role === "user");
    chat.title = (first?.content ?? "").trim().slice(0, 60);
    const next = { ...chat, revision: chat.revision + 1, changed: Date.now() };
    localStorage.setItem(PREFIX + chat.id, JSON.stringify(next));
    Object.assign(chat, next);
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
