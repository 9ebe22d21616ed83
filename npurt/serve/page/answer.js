// An answer while it is generated: its text, its speed, and its view.

import { fill } from "./view.js";

// Appends an answer, whose chunks `chunks` yields, to `message`, and calls `shown` after each change.
// An error becomes a part of the message.
export async function stream(chunks, message, shown) {
  const clock = new Clock(message.figures);
  try {
    for await (const part of chunks) {
      const choice = part.choices?.[0];
      const delta = choice?.delta ?? {};
      if (delta.reasoning_content) message.thought = (message.thought ?? "") + delta.reasoning_content;
      message.content += delta.content ?? "";
      if (delta.content || delta.reasoning_content) clock.tick();
      if (part.prompt_progress) message.progress = part.prompt_progress;
      if (choice?.finish_reason) message.figures.finish = choice.finish_reason;
      if (part.usage) clock.end(part.usage);
      shown();
    }
  } catch (error) {
    if (error.name === "AbortError") message.figures.finish = "stopped";
    else message.error = error.message;
  }
  delete message.waiting;
  delete message.progress;
}

// Measures the tokens of an answer and their speed.  A continued answer has earlier tokens.
class Clock {
  constructor(figures) {
    this.earlier = figures.tokens ?? 0;
    delete figures.finish;
    this.figures = Object.assign(figures, { tokens: this.earlier, about: true });
    this.began = performance.now();
  }

  // Counts one piece of text, which usually is one token.
  tick() {
    this.last = performance.now();
    this.firstAt ??= this.last;
    this.figures.first = (this.firstAt - this.began) / 1000;
    this.count(this.figures.tokens - this.earlier + 1);
  }

  // Sets the exact counts of tokens, from the server's usage.
  end(usage) {
    this.figures.about = false;
    this.figures.used = usage.total_tokens;
    this.count(usage.completion_tokens);
  }

  count(tokens) {
    const seconds = (this.last - this.firstAt) / 1000;
    this.figures.tokens = this.earlier + tokens;
    this.figures.rate = seconds > 0 ? (tokens - 1) / seconds : undefined;
  }
}

// Updates the view of a growing message.  The updates take at most a quarter of the time, and leave
// the scroll position if the reader has scrolled up.
export class Shown {
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
    const list = this.made.parentElement;
    const atEnd = list && list.scrollTop + list.clientHeight > list.scrollHeight - 40;
    fill(this.made, this.message);
    if (atEnd) list.scrollTop = list.scrollHeight;
    this.took = performance.now() - began;
  }
}
