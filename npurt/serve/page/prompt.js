// The messages of a request, made from the messages of a conversation.

// Returns the messages that a request sends.  Answers without text (their request failed, or was
// stopped early) are omitted.  Then neighbours with the same role are joined, because some chat
// templates refuse two messages of the same role in a row.
export function turns({ system, messages }) {
  const found = system ? [{ role: "system", content: system }] : [];
  for (const { role, content } of messages) {
    if (role === "assistant" && !content) continue;
    const last = found.at(-1);
    if (last?.role === role) last.content += `\n\n${content}`;
    else found.push({ role, content });
  }
  return found;
}
