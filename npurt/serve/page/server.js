// The page's requests to the server: chat over OpenAI's interface, and the server's state.

const KEY = "npurt.key";

export class ServerError extends Error {
  // `error` is the object in the server's answer.
  constructor(message, error = {}) {
    super(message);
    this.isContextFull =
      error.code === "context_length_exceeded" || error.type === "exceed_context_size_error";
  }
}

// Resolves to an API key that the user types.  All requests that need a key wait for one dialog.
let asking = null;
function askKey() {
  asking ??= new Promise((resolve) => {
    const dialog = document.querySelector("#ask-key");
    const field = document.querySelector("#key");
    field.value = "";
    document.querySelector("#key-form").onsubmit = (event) => {
      event.preventDefault();
      sessionStorage.setItem(KEY, field.value.trim());
      dialog.close();
    };
    dialog.onclose = () => {
      asking = null;
      resolve();
    };
    dialog.showModal();
  });
  return asking;
}

// Returns the response to a request; if the server requires an API key, asks the user for one.
async function ask(path, options = {}) {
  for (;;) {
    const key = sessionStorage.getItem(KEY);
    const headers = { ...options.headers, ...(key ? { Authorization: `Bearer ${key}` } : {}) };
    let answer;
    try {
      answer = await fetch(path, { ...options, headers });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ServerError("The server does not answer.");
    }
    if (answer.ok) return answer;
    if (answer.status !== 401) throw await refusal(answer);
    if (key === sessionStorage.getItem(KEY)) {
      await askKey();
      if (key === sessionStorage.getItem(KEY)) throw new ServerError("The server needs another API key.");
    }
  }
}

async function refusal(answer) {
  try {
    const { error } = await answer.json();
    return new ServerError(error.message, error);
  } catch {
    return new ServerError(`The server answered ${answer.status}.`);
  }
}

export async function state(model) {
  const query = model ? `?model=${encodeURIComponent(model)}` : "";
  return (await ask(`/page/state${query}`)).json();
}

// Resolves to the names of all models.
export async function models() {
  return (await (await ask("/v1/models")).json()).data.map(({ id }) => id);
}

// Yields the chat.completion.chunk objects of a stream.
export async function* chat(body, signal) {
  const answer = await ask("/v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...body, stream: true, return_progress: true, stream_options: { include_usage: true } }),
    signal,
  });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read().catch((error) => {
      if (error.name === "AbortError") throw error;
      return { done: true };
    });
    if (done) throw new ServerError("The connection ended before the text did.");
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const data = event.replace(/^data: /, "");
      if (data === "[DONE]") return;
      const part = JSON.parse(data);
      if (part.error) throw new ServerError(part.error.message, part.error);
      yield part;
    }
  }
}
