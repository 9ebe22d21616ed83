// The select box of models, shown if the server has several models.

import { element, show } from "./markdown.js";
import { models } from "./server.js";

const KEY = "npurt.model";

export class Choice {
  // Calls `changed` when the user chooses another model.
  constructor(changed) {
    this.box = document.querySelector("#choice");
    this.box.addEventListener("change", () => {
      localStorage.setItem(KEY, this.box.value);
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
    const kept = localStorage.getItem(KEY);
    if (several && names.includes(kept)) this.box.value = kept;
    this.box.hidden = !several;
    document.querySelector("#model").hidden = several;
  }
}
