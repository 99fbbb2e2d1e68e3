// The text of a message while it is edited.
import { app } from './app.svelte.js';

/** Belongs to one message. The editor closes when the conversation goes on, and what was typed stays. */
export class Draft {
  isOpen = $state(false);
  typed = $state(null);

  constructor() {
    $effect(() => {
      if (app.running) this.isOpen = false;
    });
  }

  open(text) {
    this.typed ??= text;
    this.isOpen = true;
  }

  discard() {
    this.isOpen = false;
    this.typed = null;
  }
}
