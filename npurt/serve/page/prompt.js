// The messages of a request, made from the messages of a conversation and their attached files.

const MOST = 1 << 20; // bytes of an attached file; a request has at most 4 MiB

// Returns the messages that a request sends.  Answers without text (their request failed, or was
// stopped early) are omitted.  Then neighbours with the same role are joined, because some chat
// templates refuse two messages of the same role in a row.
// The first `leftOut` messages are omitted, too.
export function turns({ system, messages, leftOut = 0 }) {
  const found = system ? [{ role: "system", content: system }] : [];
  for (const message of messages.slice(leftOut)) {
    const { role } = message;
    const content = [message.content, ...(message.files ?? []).map(quoted)].filter(Boolean).join("\n\n");
    if (role === "assistant" && !content) continue;
    const last = found.at(-1);
    if (last?.role === role) last.content += `\n\n${content}`;
    else found.push({ role, content });
  }
  return found;
}

// Returns the number of messages after the first `start` that are the oldest turns with at least a
// quarter of the characters; 0 if only one turn is left.
export function oldest(all, start) {
  const size = (list) => list.reduce((sum, { content }) => sum + content.length, 0);
  const kept = all.slice(start);
  const begins = kept.flatMap(({ role }, i) => (i && role === "user" ? [i] : []));
  return begins.find((i) => size(kept.slice(0, i)) >= size(kept) / 4) ?? begins.at(-1) ?? 0;
}

// Returns an attached file as a block of code, between fences longer than any in its text.
function quoted({ name, text }) {
  const longest = Math.max(2, ...[...text.matchAll(/`+/g)].map(([run]) => run.length));
  const fence = "`".repeat(longest + 1);
  return `File ${name}:\n${fence}\n${text}\n${fence}`;
}

// Resolves to the name and the text of a file.  Rejects with an Error if it is no text.
export async function attached(file) {
  if (file.size > MOST) throw new Error(`${file.name} has more than ${MOST / 1024} KiB.`);
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    if (text.includes("\0")) throw new Error("binary");
    return { name: file.name, text };
  } catch {
    throw new Error(`${file.name} is not a text file in UTF-8.`);
  }
}
