// Converts the TeX that models write to MathML, which browsers show without a library.  Unknown
// commands are shown as they are written.  The result is nodes, never HTML.

const DEPTH = 30; // nesting; deeper parts are shown as they are written
const MOST = 5000; // characters of a formula; longer ones are shown as they are written
const SPACE = "http://www.w3.org/1998/Math/MathML";
const TOKEN = /\\[A-Za-z]+\*?|\\[^]|\d+(?:\.\d+)?|[^\s]/g;

const pairs = (text) => new Map(text.trim().split(/\s+/).map((pair) => pair.split("=")));
const LETTERS = pairs("alpha=α beta=β gamma=γ delta=δ epsilon=ϵ varepsilon=ε zeta=ζ eta=η theta=θ "
  + "vartheta=ϑ iota=ι kappa=κ lambda=λ mu=μ nu=ν xi=ξ pi=π rho=ρ sigma=σ tau=τ upsilon=υ phi=ϕ "
  + "varphi=φ chi=χ psi=ψ omega=ω Gamma=Γ Delta=Δ Theta=Θ Lambda=Λ Xi=Ξ Pi=Π Sigma=Σ Upsilon=Υ Phi=Φ "
  + "Psi=Ψ Omega=Ω infty=∞ partial=∂ nabla=∇ hbar=ℏ ell=ℓ emptyset=∅ varnothing=∅ Re=ℜ Im=ℑ aleph=ℵ");
const OPERATORS = pairs("times=× div=÷ cdot=⋅ pm=± mp=∓ ast=∗ star=⋆ circ=∘ bullet=∙ oplus=⊕ otimes=⊗ "
  + "le=≤ leq=≤ ge=≥ geq=≥ ne=≠ neq=≠ approx=≈ equiv=≡ sim=∼ simeq=≃ cong=≅ propto=∝ ll=≪ gg=≫ in=∈ "
  + "notin=∉ ni=∋ subset=⊂ subseteq=⊆ supset=⊃ supseteq=⊇ cup=∪ cap=∩ setminus=∖ forall=∀ exists=∃ "
  + "neg=¬ lnot=¬ land=∧ wedge=∧ lor=∨ vee=∨ to=→ rightarrow=→ leftarrow=← leftrightarrow=↔ Rightarrow=⇒ "
  + "implies=⇒ Leftarrow=⇐ Leftrightarrow=⇔ iff=⇔ mapsto=↦ uparrow=↑ downarrow=↓ ldots=… dots=… cdots=⋯ "
  + "vdots=⋮ ddots=⋱ mid=| parallel=∥ perp=⊥ angle=∠ triangle=△ langle=⟨ rangle=⟩ lfloor=⌊ rfloor=⌋ "
  + "lceil=⌈ rceil=⌉ vert=| Vert=‖ int=∫ iint=∬ oint=∮ prime=′ colon=: therefore=∴ because=∵");
const LARGE = pairs("sum=∑ prod=∏ coprod=∐ bigcup=⋃ bigcap=⋂ bigoplus=⨁ bigotimes=⨂");
const NAMED = new Set("sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln lg exp det dim "
  .concat("ker arg deg gcd hom Pr").split(" "));
const LIMITS = new Set("lim limsup liminf max min sup inf argmax argmin".split(" "));
const ACCENTS = pairs("hat=^ widehat=^ bar=¯ overline=¯ tilde=~ widetilde=~ vec=→ dot=˙ ddot=¨");
const SPACES = pairs("\\,=0.17em \\:=0.22em \\;=0.28em \\quad=1em \\qquad=2em");
const FONTS = pairs("mathbf=bold boldsymbol=bold bm=bold mathbb=double-struck mathcal=script "
  + "mathscr=script mathfrak=fraktur mathrm=normal operatorname=normal text=text textbf=text "
  + "textit=text mbox=text mathit=italic mathsf=normal mathtt=normal");
const FENCES = pairs("matrix= pmatrix=() bmatrix=[] vmatrix=|| Bmatrix={} smallmatrix= array= cases={ "
  + "aligned= align= align*= gathered= gather= gather*= split= equation= equation*=");
// The first code points of the letters A, a and the digit 0 in Unicode's mathematical alphabets.
const ALPHABETS = { bold: [0x1d400, 0x1d41a, 0x1d7ce], "double-struck": [0x1d538, 0x1d552, 0x1d7d8],
  script: [0x1d49c, 0x1d4b6], fraktur: [0x1d504, 0x1d51e] };
const EXCEPTIONS = pairs("double-struckC=ℂ double-struckH=ℍ double-struckN=ℕ double-struckP=ℙ "
  + "double-struckQ=ℚ double-struckR=ℝ double-struckZ=ℤ scriptB=ℬ scriptE=ℰ scriptF=ℱ scriptH=ℋ "
  + "scriptI=ℐ scriptL=ℒ scriptM=ℳ scriptR=ℛ fraktuR=ℜ");

function node(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SPACE, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  for (const child of children) made.append(child);
  return made;
}

const row = (nodes) => (nodes.length === 1 ? nodes[0] : node("mrow", {}, ...nodes));

// Returns the math element of a formula in TeX; with `display`, as a block.
export function math(tex, display) {
  const made = node("math", display ? { display: "block" } : {});
  made.append(tex.length > MOST ? node("mtext", {}, tex) : row(new Parser(tex).row(() => false)));
  return made;
}

class Parser {
  constructor(tex) {
    this.tokens = [...tex.matchAll(TOKEN)];
    this.tex = tex;
    this.at = 0;
    this.depth = 0;
  }

  get next() {
    return this.tokens[this.at]?.[0];
  }

  // Returns the nodes up to the end, or to a token that `ends` accepts, which is not consumed.
  row(ends) {
    const nodes = [];
    while (this.next !== undefined && !ends(this.next)) nodes.push(this.scripted());
    return nodes;
  }

  // Returns an atom with its subscript and superscript.
  scripted() {
    const limits = this.next?.[0] === "\\" && (LARGE.has(this.next.slice(1)) || LIMITS.has(this.next.slice(1)));
    const base = this.next === "^" || this.next === "_" ? node("mrow") : this.atom();
    const scripts = { sub: [], sup: [] };
    while (this.next === "^" || this.next === "_" || this.next === "'") {
      const mark = this.tokens[this.at++][0];
      scripts[mark === "_" ? "sub" : "sup"].push(mark === "'" ? node("mo", {}, "′") : this.argument());
    }
    const [sub, sup] = [scripts.sub, scripts.sup].map((found) => found.length && row(found));
    const [under, over, both] = limits ? ["munder", "mover", "munderover"] : ["msub", "msup", "msubsup"];
    if (sub && sup) return node(both, {}, base, sub, sup);
    return sub ? node(under, {}, base, sub) : sup ? node(over, {}, base, sup) : base;
  }

  // Returns one argument of a command: a group, or one atom.
  argument() {
    return this.next === undefined ? node("mrow") : this.atom();
  }

  atom() {
    if (this.depth === DEPTH) return node("mtext", {}, this.tokens[this.at++][0]);
    this.depth++;
    const made = this.shallow();
    this.depth--;
    return made;
  }

  shallow() {
    const token = this.tokens[this.at++][0];
    if (token === "{") {
      const made = row(this.row((next) => next === "}"));
      this.at++;
      return made;
    }
    if (token[0] === "\\" && token.length > 1) return this.command(token, token.slice(1));
    if (/^\d/.test(token)) return node("mn", {}, token);
    if (/^\p{L}/u.test(token)) return node("mi", {}, token);
    const stretchy = /[()[\]|/]/.test(token) ? { stretchy: "false" } : {};
    return node("mo", stretchy, token === "-" ? "−" : token);
  }

  command(token, name) {
    if (LETTERS.has(name)) return node("mi", {}, LETTERS.get(name));
    if (OPERATORS.has(name)) return node("mo", {}, OPERATORS.get(name));
    if (LARGE.has(name)) return node("mo", { largeop: "true", movablelimits: "true" }, LARGE.get(name));
    if (LIMITS.has(name)) return node("mo", { movablelimits: "true" }, name);
    if (NAMED.has(name)) return node("mi", {}, name);
    if (SPACES.has(token)) return node("mspace", { width: SPACES.get(token) });
    if (/^[dt]?frac$/.test(name)) return node("mfrac", {}, this.argument(), this.argument());
    if (name === "binom") return this.fenced("(", ")", [node("mfrac", { linethickness: "0" }, this.argument(), this.argument())]);
    if (name === "sqrt") return this.root();
    if (ACCENTS.has(name)) return node("mover", { accent: "true" }, this.argument(), node("mo", {}, ACCENTS.get(name)));
    if (name === "underline") return node("munder", {}, this.argument(), node("mo", {}, "_"));
    if (FONTS.has(name)) return this.font(FONTS.get(name));
    if (name === "left") return this.sized();
    if (name === "begin") return this.environment();
    if (/^(?:big|Big|bigg|Bigg)[lrm]?$/.test(name)) return this.argument();
    if (name === "!" || name === "displaystyle" || name === "limits" || name === "\\") return node("mrow");
    if (name.length === 1 && !/\w/.test(name)) return node("mo", {}, name === "|" ? "‖" : name);
    return node("mtext", {}, token);
  }

  root() {
    if (this.next !== "[") return node("msqrt", {}, this.argument());
    this.at++;
    const index = row(this.row((next) => next === "]"));
    this.at++;
    return node("mroot", {}, this.argument(), index);
  }

  // Returns the text of the next group as it is written, with its blanks.
  group() {
    if (this.next !== "{") return this.tokens[this.at++]?.[0] ?? "";
    const begin = this.tokens[this.at++].index + 1;
    for (let open = 1; this.next !== undefined; this.at++) {
      open += Number(this.next === "{") - Number(this.next === "}");
      if (!open) break;
    }
    return this.tex.slice(begin, this.tokens[this.at++]?.index ?? this.tex.length);
  }

  font(kind) {
    const text = this.group();
    if (kind === "text") return node("mtext", {}, text.replace(/ /g, "\u00a0"));
    if (kind === "normal" || kind === "italic") return node("mi", kind === "normal" ? { mathvariant: "normal" } : {}, text);
    return node("mi", {}, [...text].map((letter) => styled(letter, kind)).join(""));
  }

  fenced(left, right, nodes) {
    const fence = (text) => (text && text !== "." ? [node("mo", { fence: "true", stretchy: "true" }, text)] : []);
    return node("mrow", {}, ...fence(left), ...nodes, ...fence(right));
  }

  sized() {
    const left = this.delimiter();
    const nodes = this.row((next) => next === "\\right");
    this.at++;
    return this.fenced(left, this.delimiter(), nodes);
  }

  delimiter() {
    const token = this.tokens[this.at++]?.[0] ?? "";
    const name = token.replace(/^\\/, "");
    return token === "\\|" ? "‖" : OPERATORS.get(name) ?? name;
  }

  environment() {
    const name = this.group();
    if (!FENCES.has(name)) return node("mtext", {}, `\\begin{${name}}`);
    if (name === "array") this.group(); // the alignment of columns
    const [left, right] = FENCES.get(name);
    const table = node("mtable", /^align|^split/.test(name) ? { class: "aligned" } : {});
    for (let cells = [], more = true; more; ) {
      const found = this.row((next) => next === "&" || next === "\\\\" || next === "\\end");
      cells.push(node("mtd", {}, row(found)));
      const end = this.next;
      this.at++;
      if (end === "&") continue;
      if (cells.length > 1 || found.length) table.append(node("mtr", {}, ...cells));
      cells = [];
      more = end === "\\\\";
    }
    this.group(); // the name after \end
    return this.fenced(left, right, [table]);
  }
}

function styled(letter, kind) {
  const code = letter.codePointAt(0);
  const [upper, lower, digit] = ALPHABETS[kind];
  if (EXCEPTIONS.has(kind + letter)) return EXCEPTIONS.get(kind + letter);
  if (/[A-Z]/.test(letter)) return String.fromCodePoint(upper + code - 65);
  if (/[a-z]/.test(letter)) return String.fromCodePoint(lower + code - 97);
  return digit && /\d/.test(letter) ? String.fromCodePoint(digit + code - 48) : letter;
}
