// Conversations, which the browser keeps.  Each has an entry of its own, so that two tabs do not
// overwrite each other's.

const PREFIX = "npurt.chat.";
const USUAL = "npurt.settings"; // of the next conversation

// Returns a name that no other conversation has.  crypto.randomUUID() is there on https only.
function newId() {
  const numbers = crypto.getRandomValues(new Uint32Array(4));
  return [...numbers].map((n) => n.toString(16).padStart(8, "0")).join("");
}

function read(key) {
  try {
    return JSON.parse(localStorage.getItem(key));
  } catch {
    return null; // not ours, or broken
  }
}

const isText = (value) => typeof value === "string";

export class Chats {
  // Returns a conversation without messages, with the settings that were used last.
  empty() {
    const { system = "", settings = {} } = read(USUAL) ?? {};
    return { id: newId(), title: "", system, settings, messages: [], revision: 0, changed: 0 };
  }

  // Returns a conversation, or null.
  get(id) {
    const found = read(PREFIX + id);
    const whole = found && found.id === id && isText(found.title) && Array.isArray(found.messages)
      && found.messages.every((m) => m && isText(m.role) && isText(m.content));
    return whole ? found : null;
  }

  // Returns all conversations, the last changed first.
  all() {
    return Object.keys(localStorage)
      .filter((key) => key.startsWith(PREFIX))
      .map((key) => this.get(key.slice(PREFIX.length)))
      .filter(Boolean)
      .sort((a, b) => b.changed - a.changed);
  }

  // Keeps a conversation.  When another tab has changed it, this one becomes a second one.  Raises
  // what the browser does when it has no room.
  save(chat) {
    const kept = this.get(chat.id);
    if (kept && kept.revision !== chat.revision) chat.id = newId();
    const first = chat.messages.find((message) => message.role === "user");
    chat.title = (first?.content ?? "").trim().slice(0, 60);
    const next = { ...chat, revision: chat.revision + 1, changed: Date.now() };
    localStorage.setItem(PREFIX + chat.id, JSON.stringify(next));
    Object.assign(chat, next);
  }

  // Takes the settings of a conversation for the next new one.
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
