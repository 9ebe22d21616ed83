// The live view of the server: its device, queue, pages and sequences.

import { element, show } from "./markdown.js";
import { Choice } from "./choice.js";
import { state } from "./server.js";

const SECONDS = 2;

const percent = (share) => `${(100 * share).toFixed(1)} %`;

export class Status {
  constructor() {
    this.device = "";
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
      "Texts that run": found.sequences && `${found.running} of ${found.sequences}`,
      "Texts that wait": found.waiting,
      "Pages in use": found.pages === null ? null : `${found.used} of ${found.pages}`,
      "Kept prefixes": found.prefixes,
      Context: found.context,
      Steps: found.steps,
      "Checked products": found.verified,
      "Wrong, computed again": found.wrong,
      "Fallbacks to the CPU": found.fallbacks,
      "Engine started again": found.restarts,
      npurt: found.version,
    };
    const nodes = Object.entries(rows).flatMap(([name, value]) => [
      element("dt", { textContent: name }),
      element("dd", { textContent: value ?? "not known" }),
    ]);
    show(document.querySelector("#state"), nodes);
  }
}
