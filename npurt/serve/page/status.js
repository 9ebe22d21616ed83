// The live view of the server: its device, queue, pages and sequences.

import { element, show } from "./markdown.js";
import { models, state } from "./server.js";

const SECONDS = 2;
const MODEL = "npurt.model"; // key of the chosen model

const percent = (share) => `${(100 * share).toFixed(1)} %`;

export class Status {
  // Calls `changed` after the state was read.
  constructor(changed) {
    this.changed = changed;
    this.device = "";
    this.model = "";
    this.context = null; // the number of tokens of the context
    this.choice = new Choice(() => this.read());
    document.querySelector("#server").addEventListener("toggle", () => this.read());
  }

  // Reads the state now, and then periodically while the view is open.
  async read() {
    clearTimeout(this.timer);
    try {
      if (!this.known) await this.choice.read();
      this.known = true;
      this.show(await state(this.choice.model));
    } catch (error) {
      document.querySelector("#where").textContent = error.message;
    }
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.again(), SECONDS * 1000);
  }

  again() {
    const open = document.querySelector("#server").open;
    const settled = this.device && !open;
    if (document.hidden || settled) this.timer = setTimeout(() => this.again(), SECONDS * 1000);
    else this.read();
  }

  show(found) {
    this.device = found.ready ? found.device : "";
    this.model = found.model;
    this.context = found.context;
    showDefaults(found.defaults);
    this.changed();
    document.title = `${found.model} - npurt`;
    document.querySelector("#model").textContent = found.model;
    const share = found.npu_share === null ? "" : `, ${percent(found.npu_share)} of the work`;
    const npu = found.npu ? share : " (no NPU in use)";
    const fallbacks = found.fallbacks ? `, ${found.fallbacks} fallbacks` : "";
    document.querySelector("#where").textContent = found.ready
      ? `on ${found.device}${npu}${fallbacks}`
      : found.status === "unloaded" ? "loaded with the first message" : "loading";
    const rows = {
      Device: found.device,
      "Work on the NPU": found.npu_share === null ? null : percent(found.npu_share),
      Running: found.sequences && `${found.running} of ${found.sequences}`,
      Queued: found.waiting,
      "KV cache pages": found.pages === null ? null : `${found.used} of ${found.pages}`,
      "Cached prefixes": found.prefixes,
      Context: found.context,
      Steps: found.steps,
      "Verified products": found.verified,
      "Wrong products": found.wrong,
      "CPU fallbacks": found.fallbacks,
      "Engine restarts": found.restarts,
      npurt: found.version,
    };
    const nodes = Object.entries(rows).flatMap(([name, value]) => [
      element("dt", { textContent: name }),
      element("dd", { textContent: value ?? "unknown" }),
    ]);
    show(document.querySelector("#state"), nodes);
  }
}

// Shows the server's defaults as placeholders of the settings.
function showDefaults(defaults) {
  for (const field of document.querySelectorAll("#settings input")) {
    const value = defaults?.[field.name];
    field.placeholder = value === undefined ? "server's default" : value;
  }
}

// The select box of models, shown if the server has several models.
class Choice {
  // Calls `changed` when the user chooses another model.
  constructor(changed) {
    this.box = document.querySelector("#choice");
    this.box.addEventListener("change", () => {
      localStorage.setItem(MODEL, this.box.value);
      changed();
    });
  }

  // The name of the chosen model; undefined: the server has only one.
  get model() {
    return this.box.value || undefined;
  }

  // Fills the select box with the server's models.
  async read() {
    const names = await models();
    const several = names.length > 1;
    const options = names.map((name) => element("option", { value: name, textContent: name }));
    show(this.box, several ? options : []);
    const kept = localStorage.getItem(MODEL);
    if (several && names.includes(kept)) this.box.value = kept;
    this.box.hidden = !several;
    document.querySelector("#model").hidden = several;
  }
}
