// Converts Markdown to DOM nodes.  The text is untrusted: no part of it is parsed as HTML, links use
// http, https and mailto only, and images are not loaded.  The time is linear in the length of any
// text, because searches do not repeat over the same characters, and nesting is limited.

import { colored } from "./code.js";
import { math } from "./math.js";

const DEPTH = 12; // nesting of quotations and lists; deeper ones are shown as plain text
const CHECKED = 2000; // characters of a link's address
const MARK = /\\[!-/:-@[-`{-~]|`+|\*\*?|__?|~~|!?\[|\]|\$\$?|https?:\/\/|\n/g;
const ADDRESS = /\]\([ ]{0,9}<?((?:[^\s()<>]|\([^\s()<>]{0,200}\)){0,2000})>?(?:[ ]{1,9}"[^"\n]{0,200}")?[ ]{0,9}\)/y;
const BARE = /https?:\/\/[^\s<>"'`)\]]{1,2000}/y;
const FENCE = /^ {0,3}(`{3,}|~{3,})([^`]{0,200})$/;
const ITEM = /^( {0,40})([-*+]|\d{1,9}[.)])( {1,4}|$)/;
const HEADING = /^ {0,3}(#{1,6}) (.*)$/;
const NOWHERE = -2;
const LINES = 100; // lines of a block formula; this bounds the cost of beginnings without an end
const FORMULAS = { $$: "$$", "\\[": "\\]" }; // of blocks: begin and end
const TASK = /^\[([ xX])\]\s+/;
const ALIGNED = ["", "left", "right", "center"]; // classes of cells: colon before 1, after 2
const TAGS = { "*": "em", _: "em", "**": "strong", __: "strong", "~~": "s" };

// Returns an element `tag` with `children`, which are nodes and strings.
export function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  for (const child of children) made.append(child); // a spread would overflow the stack
  return made;
}

// Returns the nodes of a text in Markdown.
export function markdown(text) {
  return blocks(text.replace(/\r\n?/g, "\n").split("\n"), 0);
}

// Shows `nodes` in `parent`; keeps unchanged nodes, so that the reader's selection remains.
export function show(parent, nodes) {
  let i = 0;
  for (const old of [...parent.childNodes]) {
    const made = nodes[i++];
    if (made === undefined) old.remove();
    else if (!old.isEqualNode(made)) old.replaceWith(made);
  }
  for (; i < nodes.length; i++) parent.append(nodes[i]);
}

// --- Blocks --------------------------------------------------------------------------------------

function blocks(lines, depth) {
  const nodes = [];
  let plain = [];
  const flush = () => {
    if (plain.length) nodes.push(element("p", {}, inline(plain.join("\n"))));
    plain = [];
  };
  for (let i = 0; i < lines.length; ) {
    const found = block(lines, i, depth, plain.length > 0);
    if (found) {
      flush();
      if (found.node) nodes.push(found.node);
      i = found.next;
    } else {
      plain.push(lines[i++]);
    }
  }
  flush();
  return nodes;
}

// Returns the block that begins with line `i`, and the number of the next line; null if line `i`
// begins no block.
function block(lines, i, depth, inParagraph) {
  const line = lines[i];
  const bare = line.trim();
  if (!bare) return { next: i + 1 };
  const fence = FENCE.exec(line);
  if (fence) return code(lines, i, fence);
  const heading = HEADING.exec(line);
  if (heading) {
    const made = element(`h${Math.min(6, heading[1].length + 1)}`, {}, inline(heading[2]));
    return { node: made, next: i + 1 };
  }
  if (/^(-{3,}|\*{3,}|_{3,})$/.test(bare.replaceAll(" ", ""))) {
    return { node: element("hr"), next: i + 1 };
  }
  const begin = bare.slice(0, 2);
  if (begin in FORMULAS) {
    const found = formula(lines, i, begin, FORMULAS[begin]);
    if (found) return found;
  }
  if (depth < DEPTH && bare.startsWith(">")) return quotation(lines, i, depth);
  const item = ITEM.exec(line);
  // A numbered item ends a paragraph only if its number is 1.
  if (depth < DEPTH && item && !(inParagraph && /^\d/.test(item[2]) && parseInt(item[2]) !== 1)) {
    return list(lines, i, depth, item);
  }
  if (!inParagraph && line.includes("|") && i + 1 < lines.length) return table(lines, i);
  return null;
}

// Returns a formula that begins line `i` and ends a line; null if it does not end before a blank line.
function formula(lines, i, begin, end) {
  const kept = [];
  const last = Math.min(lines.length, i + LINES);
  for (let next = i; next < last && lines[next].trim(); next++) {
    const bare = lines[next].trim().slice(next === i ? begin.length : 0);
    if (bare.endsWith(end)) {
      kept.push(bare.slice(0, -end.length));
      return { node: element("div", { className: "formula" }, math(kept.join("\n"), true)), next: next + 1 };
    }
    if (bare.includes(end)) return null;
    kept.push(bare);
  }
  return null;
}

function code(lines, i, fence) {
  const kept = [];
  let next = i + 1;
  for (; next < lines.length; next++) {
    const bare = lines[next].trim();
    if (bare.length >= fence[1].length && bare === fence[1][0].repeat(bare.length)) break;
    kept.push(lines[next]);
  }
  const caption = element("figcaption", {}, element("span", { textContent: fence[2].trim() }),
    element("button", { type: "button", className: "copy", textContent: "Copy" }));
  const text = element("pre", {}, element("code", {}, ...colored(kept.join("\n"), fence[2])));
  return { node: element("figure", { className: "code" }, caption, text), next: next + 1 };
}

function quotation(lines, i, depth) {
  const kept = [];
  for (; i < lines.length && lines[i].trimStart().startsWith(">"); i++) {
    kept.push(lines[i].trimStart().replace(/^> ?/, ""));
  }
  const made = element("blockquote");
  for (const node of blocks(kept, depth + 1)) made.append(node);
  return { node: made, next: i };
}

function list(lines, i, depth, first) {
  const ordered = /^\d/.test(first[2]);
  const made = element(ordered ? "ol" : "ul");
  if (ordered) made.start = parseInt(first[2]);
  const same = (item) => item && item[1].length <= first[1].length + 1
    && (ordered ? /^\d/.test(item[2]) : item[2] === first[2]);
  let item = first;
  while (same(item)) {
    const inner = item[0].length;
    const kept = [lines[i++].slice(inner)];
    while (i < lines.length && belongs(lines, i, inner)) {
      kept.push(lines[i].slice(Math.min(inner, lines[i].search(/\S|$/))));
      i++;
    }
    const task = TASK.exec(kept[0]);
    const entry = element("li");
    if (task) kept[0] = kept[0].slice(task[0].length);
    for (const node of blocks(kept, depth + 1)) entry.append(node);
    // The first paragraph of an item is shown without a margin.
    if (entry.childNodes.length && entry.firstChild.tagName === "P") {
      entry.firstChild.replaceWith(fragment([...entry.firstChild.childNodes]));
    }
    if (task) {
      entry.className = "task";
      entry.prepend(element("input", { type: "checkbox", disabled: true, checked: task[1] !== " " }), " ");
    }
    made.append(entry);
    item = i < lines.length ? ITEM.exec(lines[i]) : null;
  }
  return { node: made, next: i };
}

// Returns whether line `i` is part of an item whose text is indented by `inner`.
function belongs(lines, i, inner) {
  const indent = lines[i].search(/\S/);
  if (indent >= inner) return true;
  if (indent < 0) return i + 1 < lines.length && lines[i + 1].search(/\S/) >= inner;
  // The line continues the paragraph of the line before.
  return lines[i - 1].trim() !== "" && !ITEM.test(lines[i]) && !FENCE.test(lines[i])
    && !HEADING.test(lines[i]);
}

function table(lines, i) {
  const head = cells(lines[i]);
  const rule = cells(lines[i + 1]);
  if (head.length !== rule.length || !rule.every((cell) => /^:?-+:?$/.test(cell))) return null;
  const sides = rule.map((cell) => ALIGNED[Number(cell.startsWith(":")) + 2 * Number(cell.endsWith(":"))]);
  const row = (tag, texts) => {
    const made = element("tr");
    texts.forEach((text, at) => {
      made.append(element(tag, sides[at] ? { className: sides[at] } : {}, inline(text)));
    });
    return made;
  };
  const body = element("tbody");
  let next = i + 2;
  for (; next < lines.length && lines[next].includes("|"); next++) {
    body.append(row("td", cells(lines[next]).slice(0, head.length)));
  }
  const made = element("table", {}, element("thead", {}, row("th", head)), body);
  return { node: element("div", { className: "table" }, made), next };
}

function cells(line) {
  const bare = line.trim().replace(/^\|/, "").replace(/([^\\])\|$/, "$1");
  return bare.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

// --- Text within a block -------------------------------------------------------------------------

// Returns a fragment of the inline nodes of `text`.  `stack` has the open marks, at most one of each
// kind, which bounds its height and the cost of a closing mark.
function inline(text) {
  const stack = [{ mark: "", nodes: [] }];
  const unclosed = new Set(); // lengths of runs of backticks, and marks of formulas, without an end
  const add = (node) => stack.at(-1).nodes.push(node);
  const at = (mark) => stack.findIndex((frame) => frame.mark === mark);
  // Converts the open marks above level `level` to plain text.
  const flatten = (level) => {
    while (stack.length > level) {
      const frame = stack.pop();
      add(frame.mark);
      for (const node of frame.nodes) add(node);
    }
  };
  let end = 0;
  MARK.lastIndex = 0;
  for (let found; (found = MARK.exec(text)); ) {
    const begin = found.index;
    let mark = found[0];
    if (begin > end) add(text.slice(end, begin));
    if (mark === "**" && stack.at(-1).mark === "*" && text[begin + 2] === "*") mark = "*"; // ***
    end = begin + mark.length;
    if (mark === "\n") {
      add(element("br"));
    } else if (mark === "\\(" || mark === "\\[" || mark[0] === "$") {
      const close = unclosed.has(mark) ? -1 : formulaEnd(text, mark, end);
      if (close < 0) {
        if (close === NOWHERE) unclosed.add(mark);
        add(mark[0] === "$" ? mark : mark[1]);
      } else {
        add(math(text.slice(end, close), mark === "$$" || mark === "\\["));
        end = close + mark.length;
      }
    } else if (mark[0] === "\\") {
      add(mark[1]);
    } else if (mark[0] === "`") {
      const close = unclosed.has(mark.length) ? -1 : run(text, end, mark.length);
      if (close < 0) {
        unclosed.add(mark.length);
        add(mark);
      } else {
        add(element("code", { textContent: text.slice(end, close) }));
        end = close + mark.length;
      }
    } else if (mark.startsWith("http")) {
      BARE.lastIndex = begin;
      const bare = BARE.exec(text)?.[0].replace(/[.,;:!?]$/, "") ?? mark;
      add(at("[") < 0 && at("![") < 0 ? link(bare, [bare]) : bare);
      end = begin + bare.length;
    } else if (mark === "[" || mark === "![") {
      for (const open of ["[", "!["]) if (at(open) > 0) flatten(at(open));
      stack.push({ mark, nodes: [] });
    } else if (mark === "]") {
      end = closeLink(text, begin, stack, flatten, Math.max(at("["), at("![")), add);
    } else {
      emphasis(text, mark, begin, end, stack, flatten, at(mark), add);
    }
    MARK.lastIndex = end;
  }
  if (end < text.length) add(text.slice(end));
  flatten(1);
  return fragment(stack[0].nodes);
}

// Returns the index of the end of a formula that begins at `from`.  It is NOWHERE if no later formula
// with this mark can end either, and -1 if a dollar sign is one of an amount, such as $5.
function formulaEnd(text, mark, from) {
  const end = mark[0] === "$" ? mark : mark === "\\(" ? "\\)" : "\\]";
  const at = text.indexOf(end, from);
  if (at < 0) return NOWHERE;
  if (mark !== "$") return text.slice(from, at).trim() ? at : -1;
  const amount = /\s/.test(text[from]) || /\s/.test(text[at - 1]) || /\d/.test(text[at + 1] ?? "");
  return at === from || amount ? -1 : at;
}

// Returns a fragment of nodes and strings.
export function fragment(nodes) {
  const made = document.createDocumentFragment();
  for (const node of nodes) made.append(node);
  return made;
}

// Returns the index of a run of exactly `length` backticks at `from` or later, or -1.
function run(text, from, length) {
  const runs = /`+/g;
  runs.lastIndex = from;
  for (let found; (found = runs.exec(text)); ) if (found[0].length === length) return found.index;
  return -1;
}

function emphasis(text, mark, begin, end, stack, flatten, level, add) {
  const before = text[begin - 1] ?? " ";
  const after = text[end] ?? " ";
  const inWord = mark[0] === "_" && /\w/.test(before) && /\w/.test(after); // as in snake_case
  if (level > 0 && !/\s/.test(before) && !inWord) {
    flatten(level + 1);
    const { nodes } = stack.pop();
    add(element(TAGS[mark], {}, fragment(nodes)));
  } else if (level < 0 && !/\s/.test(after) && !inWord) {
    stack.push({ mark, nodes: [] });
  } else {
    add(mark);
  }
}

// Closes a link or an image at "]"; returns the index after it.
function closeLink(text, begin, stack, flatten, level, add) {
  ADDRESS.lastIndex = begin;
  const found = level > 0 && text[begin + 1] === "(" ? ADDRESS.exec(text) : null;
  if (!found) {
    if (level > 0) flatten(level);
    add("]");
    return begin + 1;
  }
  flatten(level + 1);
  const { mark, nodes } = stack.pop();
  add(link(found[1], mark === "![" ? ["picture: ", ...nodes] : nodes));
  return ADDRESS.lastIndex;
}

// Returns a link; returns its text only if the protocol is not allowed, such as javascript:.
function link(address, nodes) {
  let url = null;
  try {
    url = address.length <= CHECKED ? new URL(address) : null;
  } catch {
    // not an absolute address
  }
  if (!url || !["http:", "https:", "mailto:"].includes(url.protocol)) return fragment(nodes);
  const properties = { href: url.href, target: "_blank", rel: "noopener noreferrer" };
  return element("a", { ...properties, title: url.href }, fragment(nodes));
}
