// Colours code: comments, strings, numbers and keywords of common languages.  The result is nodes,
// never HTML; the time is linear in the length of the code.

const MOST = 50_000; // characters; longer code is not coloured
const words = (text) => new Set(text.split(" "));

const DOUBLE = String.raw`"(?:\\[^]|[^"\\\n])*"?`;
const SINGLE = String.raw`'(?:\\[^]|[^'\\\n])*'?`;
const RAW = "`(?:\\\\[^]|[^`\\\\])*`?"; // template strings, and raw strings of Go
const BLOCK = String.raw`/\*[^]*?(?:\*/|$)`;
const LINE = String.raw`//[^\n]*`;
const HASH = String.raw`#[^\n]*`;
const DASHES = String.raw`--[^\n]*`;
const TRIPLE = String.raw`"""[^]*?(?:"""|$)|'''[^]*?(?:'''|$)`;

const C = words("abstract alignas as async auto await bool boolean break case catch char class const "
  + "constexpr continue default defer delete do double else enum export extends extern false final "
  + "finally float fn for foreach from func function go goto if impl implements import in inline int "
  + "interface internal let long loop match mod module mut namespace new nil null nullptr of operator "
  + "override package private protected pub public range return select self short signed sizeof static "
  + "string struct super switch template this throw throws trait true try type typedef typename typeof "
  + "undefined union unsigned use using val var virtual void volatile when where while with yield");
const PYTHON = words("False None True and as assert async await break case class continue def del elif "
  + "else except finally for from global if import in is lambda match nonlocal not or pass raise "
  + "return self try while with yield");
const SHELL = words("case do done elif else esac exit export fi for function if in local return select "
  + "set shift sudo then until while");
const SQL = words("add all alter and as asc between by case create cross default delete desc distinct "
  + "drop else end exists foreign from full group having in index inner insert into is join key left "
  + "like limit not null offset on or order outer primary references right select set table then "
  + "union unique update values view when where with");
const OTHER = words("and begin break class def do else elseif end ensure false for function if in local "
  + "module next nil not null off on or repeat require rescue return self then true unless until "
  + "when while yes no yield");

// Families of languages: patterns of comments and of strings, and the keywords.
const FAMILIES = [
  ["c h cpp c++ cc hpp cs csharp css d dart go golang java javascript js json json5 jsonc jsx kotlin kt "
    + "objc php rs rust scala scss swift ts tsx typescript zig", [LINE, BLOCK], [DOUBLE, SINGLE, RAW], C],
  ["gyp py python python3 starlark", [HASH], [TRIPLE, DOUBLE, SINGLE], PYTHON],
  ["bash console dockerfile fish make makefile powershell sh shell zsh", [HASH], [DOUBLE, SINGLE], SHELL],
  ["mysql pgsql postgres postgresql sql sqlite", [DASHES, BLOCK], [SINGLE, DOUBLE], SQL],
  ["cmake conf elixir ini julia perl r rb ruby toml yaml yml", [HASH], [TRIPLE, DOUBLE, SINGLE], OTHER],
  ["haskell hs lua", [DASHES], [DOUBLE, SINGLE], OTHER],
  ["html svg vue xml", ["<!--[^]*?(?:-->|$)"], [DOUBLE, SINGLE], words("")],
];
const LANGUAGES = new Map();
for (const [names, comments, strings, keywords] of FAMILIES) {
  const pattern = `(${comments.join("|")})|(${strings.join("|")})|(\\b\\d[\\w.]*)|([A-Za-z_]\\w*)`;
  for (const name of names.split(" ")) LANGUAGES.set(name, { pattern, keywords });
}
const FOLDED = new Set(["mysql", "pgsql", "postgres", "postgresql", "sql", "sqlite"]); // in any case

// Returns the nodes and strings of `text`, code in a language.
export function colored(text, language) {
  const name = language.trim().split(/[\s,{]/)[0].toLowerCase();
  if (name === "diff" || name === "patch") return diff(text);
  const known = text.length <= MOST && LANGUAGES.get(name);
  if (!known) return [text];
  const found = [];
  let end = 0;
  for (const match of text.matchAll(new RegExp(known.pattern, "g"))) {
    const [whole, comment, string, number, word] = match;
    const kind = (comment && "comment") || (string && "string") || (number && "number")
      || (known.keywords.has(FOLDED.has(name) ? word.toLowerCase() : word) && "keyword");
    if (!kind) continue;
    found.push(text.slice(end, match.index), span(kind, whole));
    end = match.index + whole.length;
  }
  return [...found, text.slice(end)].filter(Boolean);
}

function diff(text) {
  return text.slice(0, MOST).split(/(?<=\n)/).map((line) => {
    if (line.startsWith("+")) return span("added", line);
    if (line.startsWith("-")) return span("removed", line);
    return line.startsWith("@@") ? span("comment", line) : line;
  }).concat(text.slice(MOST) || []);
}

function span(className, textContent) {
  return Object.assign(document.createElement("span"), { className, textContent });
}
