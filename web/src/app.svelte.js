// The state of the page, and what its buttons do to it.
import { tick } from 'svelte';
import * as conversationTree from './conversation.js';
import { download } from './download.js';
import * as images from './images.js';
import { plainText } from './markdown.js';
import { run } from './reply.js';
import * as server from './server.js';
import { importedConversations } from './import.js';
import { EMPTY, continuationBody, faults, messagesBefore, requestBody } from './settings.js';
import * as storage from './storage.js';

const { add, newConversation, path } = conversationTree;

/** How often a running reply is kept, in milliseconds. */
const SAVE_EVERY = 500;

/** Characters of a reply that are announced; a reader can read the rest. */
const SPOKEN = 2000;

class App {
  /** Kept conversations, newest first. */
  conversations = $state([]);
  /** The one that is shown; a new one is kept from its first message on. */
  current = $state(null);
  models = $state([]);
  /** A sentence about the page as a whole, with `kind` 'server', 'model', 'storage' or 'import'. */
  problem = $state(null);
  /** What a screen reader says next. */
  announcement = $state('');
  showSettings = $state(false);
  showList = $state(false);
  /** The question of the open dialog for a key. */
  keyQuestion = $state(null);
  /** What the open dialog asks before it deletes: `title`, `text` and the function `remove`. */
  question = $state(null);
  preferences = $state({});
  /** What is typed but not sent, by id of conversation; of all new ones, by ''. */
  drafts = new Map();
  /** The images beside it, in the same way. */
  draftImages = new Map();

  messages = $derived(this.current ? path(this.current) : []);
  /** The ids of shown messages that requests leave out. */
  leftOut = $derived(conversationTree.leftOut(this.messages));
  /** The images that the next message's request has before those of the message. */
  imagesBefore = $derived(conversationTree.imagesBefore(this.messages));
  hasImages = $derived(this.messages.some((message) => message.images?.length > 0));
  running = $derived(this.messages.at(-1)?.state === 'running');
  /** Whether the shown conversation is in the list. */
  isKept = $derived(this.conversations.some(({ id }) => id === this.current?.id));
  model = $derived(this.models.find(({ id }) => id === this.current?.settings.model));

  #aborts = new Map(); // by id of conversation
  #loading = null; // settled when the list of models has been read
  #leaving = false; // the browser breaks the connections of a page that it leaves
  #saves = new Map(); // time of the next save, by id of conversation

  async start() {
    this.preferences = storage.preferences({ theme: 'auto', markdown: true, settings: EMPTY });
    this.conversations = storage.conversations();
    this.#openFromAddress();
    addEventListener('hashchange', () => this.#openFromAddress());
    addEventListener('pagehide', () => this.#saveAll());
    addEventListener('beforeunload', () => this.#leave());
    storage.watch((id, conversation) => this.#changedElsewhere(id, conversation));
    server.onKeyNeeded((message) => this.#askForKey(message));
    await this.loadModels();
  }

  loadModels() {
    this.#loading = this.#readModels();
    return this.#loading;
  }

  async #readModels() {
    try {
      this.models = await server.models();
      if (this.problem?.kind === 'server') this.problem = null;
    } catch (error) {
      this.problem = { kind: 'server', text: error.message };
    }
    this.#chooseModel();
  }

  /** Chooses another model if the server does not have the conversation's, and says so. */
  #chooseModel() {
    if (['model', 'import'].includes(this.problem?.kind)) this.problem = null;
    const { settings, messages } = this.current;
    if (this.models.length === 0 || this.models.some(({ id }) => id === settings.model)) return;
    const [{ id }] = this.models;
    if (settings.model && messages.length > 0) {
      this.problem = { kind: 'model', text: `The model ${settings.model} is not served here; ${id} answers instead.` };
    }
    settings.model = id;
  }

  // Conversations

  #openFromAddress() {
    const found = this.conversations.find(({ id }) => id === location.hash.slice(1));
    if (found) this.open(found);
    else this.fresh();
  }

  open(conversation) {
    conversation.settings = { ...EMPTY, ...conversation.settings }; // kept by an earlier version
    this.current = conversation;
    this.showList = false;
    location.hash = conversation.id;
    this.#chooseModel();
  }

  /** Shows an empty conversation with the settings of the last one. */
  fresh() {
    this.current = newConversation({ ...EMPTY, ...this.preferences.settings });
    this.showList = false;
    history.replaceState(null, '', '#');
    this.#chooseModel();
  }

  rename(title) {
    this.current.title = title.trim();
    this.#saveIfKept();
  }

  remove(conversation) {
    this.#aborts.get(conversation.id)?.abort();
    this.conversations = this.conversations.filter(({ id }) => id !== conversation.id);
    storage.remove(conversation.id);
    this.#forgetImages([conversation]);
    if (this.problem?.kind === 'storage') this.problem = null;
    if (this.current.id === conversation.id) this.fresh();
    this.announcement = 'Conversation deleted';
  }

  /** Adds the conversations of a file that this page wrote, and shows the first. */
  async import(file) {
    this.showList = false;
    try {
      const found = await importedConversations(file, storage.CAP - storage.used());
      this.#keepImages(found);
      this.conversations = [...found, ...this.conversations].sort((a, b) => b.updated - a.updated);
      for (const { id } of found) this.#save(this.conversations.find((conversation) => conversation.id === id));
      this.open(this.conversations.find(({ id }) => id === found[0].id));
      this.announcement = found.length === 1 ? 'Conversation imported' : `${found.length} conversations imported`;
    } catch (error) {
      this.problem = { kind: 'import', text: `${file.name} cannot be imported: ${error.message}` };
    }
  }

  /** Downloads conversations with their images; one conversation or a list. Says how many images the browser has lost. */
  async export(name, conversations) {
    const all = $state.snapshot([conversations].flat());
    const lost = await images.addUrls(all);
    if (lost > 0) this.problem = { kind: 'export', text: `${name}: ${images.lostNote(lost)}` };
    download(name, Array.isArray(conversations) ? all : all[0]);
  }

  /** The settings are kept with the conversation, and for the next one. */
  settingsChanged() {
    this.preferences.settings = { ...$state.snapshot(this.current.settings) };
    this.savePreferences();
    this.#saveIfKept();
  }

  savePreferences() {
    storage.savePreferences($state.snapshot(this.preferences));
  }

  /** Closes the panels that may cover the page, and gives the focus back to the button of the one that had it. */
  async closePanels() {
    const button = this.showSettings ? 'open-settings' : 'open-list';
    this.showList = this.showSettings = false;
    await tick();
    document.getElementById(button)?.focus();
  }

  // Messages

  /** Adds a message of the user under `parent` and asks for a reply. Returns whether it did. */
  send(text, parent = this.current.leaf, pictures = []) {
    if (!this.#isReady()) return false;
    const more = pictures.length > 0 ? { images: $state.snapshot(pictures) } : {};
    const message = add(this.current, parent, { role: 'user', content: text, ...more });
    this.#keepImages([this.current]);
    this.#generate(message.id);
    return true;
  }

  /** Asks for another reply beside `reply`: with another seed, as the same request has the same reply. */
  retry(reply) {
    if (this.#isReady()) this.#generate(reply.parent, newSeed());
  }

  /** Puts an edited text beside a message: a new branch. */
  edit(message, text) {
    if (message.role === 'user') return this.send(text, message.parent, message.images);
    const { id, parent, ...rest } = $state.snapshot(message);
    add(this.current, message.parent, { ...rest, content: text, state: 'done', error: '', finish: '' });
    this.#save(this.current);
    return true;
  }

  /** Sends the results of a reply's calls, by a branch if they were sent before. */
  answer(reply, results) {
    if (!this.#isReady()) return;
    let target = reply;
    if (this.current.leaf !== reply.id) {
      const { id, parent, ...rest } = $state.snapshot(reply);
      target = add(this.current, reply.parent, rest);
    }
    target.calls.forEach((call, index) => (call.result = results[index]));
    this.#generate(target.id);
  }

  /** Generates the rest of a reply that something cut. */
  continue(reply) {
    if (!this.#isReady()) return;
    const conversation = this.current;
    // A character whose last bytes the limit has cut is generated again.
    const content = reply.content.replace(/\ufffd+$/, '');
    Object.assign(reply, { content, state: 'running', error: '', finish: '' });
    return this.#run(conversation, reply, async function* (signal) {
      const prompt = await server.promptOf(reply.model, messagesBefore(conversation, reply), reply.content, signal);
      const body = { model: reply.model, ...continuationBody(conversation.settings, prompt) };
      if (reply.seed !== null) body.seed ??= reply.seed;
      yield* server.complete(body, signal);
    });
  }

  /** Deletes a message of the user with its replies; with the last message, the conversation. */
  removePair(message) {
    const before = { messages: this.current.messages };
    conversationTree.removePair(this.current, message);
    this.#forgetImages([before]);
    if (this.current.messages.length === 0) return this.remove(this.current);
    this.#save(this.current);
    this.announcement = 'Message deleted';
  }

  show(message) {
    conversationTree.show(this.current, message);
    this.#save(this.current);
  }

  stop() {
    this.#aborts.get(this.current.id)?.abort();
  }

  #isReady() {
    if (this.running) return false;
    if (Object.keys(faults(this.current.settings)).length > 0) {
      this.showSettings = true;
      this.announcement = 'A setting is not valid';
      return false;
    }
    return true;
  }

  /** Asks for a reply to the message `parent`. `seed` counts unless the settings have one. */
  #generate(parent, seed = null) {
    const conversation = this.#keep();
    conversation.leaf = parent;
    const body = requestBody(conversation);
    if (seed !== null) body.seed ??= seed;
    const reply = add(conversation, parent, {
      role: 'assistant',
      content: '',
      thinking: '',
      calls: [],
      state: 'running',
      error: '',
      finish: '',
      format: conversation.settings.format,
      model: conversation.settings.model,
      seed: body.seed ?? null,
      counters: { prompt: null, cached: 0, generated: null, first: null, rate: null },
    });
    const loading = this.#loading;
    return this.#run(conversation, reply, async function* (signal) {
      if (!body.model) {
        await loading; // the list may still be on its way, such as after a key was asked for
        body.model = reply.model = conversation.settings.model;
      }
      yield* server.chat(await images.withImages(body), signal);
    });
  }

  /** Adds to `reply` the chunks that `chunks(signal)` yields. */
  async #run(conversation, reply, chunks) {
    const abort = new AbortController();
    this.#aborts.set(conversation.id, abort);
    this.#save(conversation);
    this.announcement = 'Generating a reply';
    await run(reply, chunks(abort.signal), abort.signal, () => this.#saveSoon(conversation));
    this.#aborts.delete(conversation.id);
    if (this.#leaving && reply.state === 'failed') Object.assign(reply, { state: 'interrupted', error: '' });
    this.#save(conversation);
    if (conversation.id === this.current.id) this.announcement = spoken(reply);
  }

  // Storage

  /** Puts the shown conversation into the list, first. Returns it as the list holds it. */
  #keep() {
    const { id } = this.current;
    const others = this.conversations.filter((other) => other.id !== id);
    this.conversations = [this.current, ...others];
    this.current = this.conversations[0];
    if (location.hash.slice(1) !== id) history.replaceState(null, '', `#${id}`);
    return this.current;
  }

  #save(conversation) {
    this.#saves.delete(conversation.id);
    if (!this.conversations.some(({ id }) => id === conversation.id)) return; // deleted in the meantime
    try {
      storage.save($state.snapshot(conversation));
    } catch (error) {
      if (!(error instanceof storage.StorageFull)) throw error;
      const size = `${this.conversations.length} conversations, ${(storage.used() / 1e6).toFixed(1)} MB`;
      const text = `The browser keeps no more text (${size}). Export conversations and delete some; new text is lost when this page closes.`;
      this.problem = { kind: 'storage', text };
    }
  }

  /** Keeps the images of conversations in the browser. */
  #keepImages(conversations) {
    images.keep(images.idsOf(conversations)).catch(() => {
      const text = 'The browser keeps no more images; new ones are lost when this page closes. Delete conversations that have images.';
      this.problem = { kind: 'storage', text };
    });
  }

  /** Forgets the images of what was removed, unless another message has them. */
  #forgetImages(removed) {
    const left = new Set(images.idsOf(this.conversations));
    images.remove(images.idsOf(removed).filter((id) => !left.has(id)));
  }

  #saveIfKept() {
    this.#save(this.current);
  }

  #saveSoon(conversation) {
    const now = Date.now();
    const due = this.#saves.get(conversation.id);
    if (due === undefined) this.#saves.set(conversation.id, now + SAVE_EVERY);
    else if (now >= due) this.#save(conversation);
  }

  #leave() {
    this.#leaving = true;
    setTimeout(() => (this.#leaving = false), 2000); // the page may stay after all
  }

  #saveAll() {
    for (const id of this.#saves.keys()) {
      this.#save(this.conversations.find((conversation) => conversation.id === id));
    }
  }

  #changedElsewhere(id, conversation) {
    if (this.#aborts.has(id)) return; // this tab writes it
    const others = this.conversations.filter((other) => other.id !== id);
    this.conversations = conversation ? [conversation, ...others].sort((a, b) => b.updated - a.updated) : others;
    if (this.current.id !== id) return;
    if (conversation) this.current = this.conversations.find((other) => other.id === id);
    else this.fresh();
  }

  // The key

  #askForKey(message) {
    return new Promise((resolve) => {
      this.keyQuestion = {
        message,
        answer: (key) => {
          this.keyQuestion = null;
          if (key) server.key.set(key);
          resolve(Boolean(key));
        },
      };
    });
  }
}

function newSeed() {
  return crypto.getRandomValues(new Uint32Array(1))[0];
}

/** What a screen reader says at a reply's end. */
function spoken(reply) {
  if (reply.state === 'failed') return `Error: ${reply.error}`;
  if (reply.state === 'stopped') return 'Reply stopped';
  const calls = reply.calls.map((call) => `The model calls ${call.name}. `).join('');
  const begin = plainText(reply.content.slice(0, SPOKEN));
  const text = reply.content.length > SPOKEN ? `${begin} … The rest is on the page.` : begin;
  return `${calls}${text}` || 'The reply is empty';
}

export const app = new App();
