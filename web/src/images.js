// The images of messages: read from files, kept in the browser's IndexedDB, and sent as data URLs. A message has
// their descriptions only, as localStorage keeps text and little of it.
import { newId } from './conversation.js';

/**
 * @typedef {object} Image what a message says of an image
 * @property {string} id
 * @property {string} name of its file
 * @property {string} type
 * @property {number} width in pixels, as its sender sees it
 * @property {number} height
 * @property {number} [bytes] of its file; older messages lack it
 * @property {string} [scaled] what was changed before it was sent, a sentence
 */

/** What the server reads. */
export const TYPES = ['image/png', 'image/jpeg', 'image/webp', 'image/gif', 'image/bmp'];

/** The images that the server takes in one request. */
export const MAX_IMAGES = 16;

/** The bytes of the images that fit into one request: 64 MB with four bytes for three, less 4 MB for the rest of it. */
const MAX_REQUEST_BYTES = 45_000_000;

/** A larger file is scaled down: several must fit into a request. */
const MAX_BYTES = 12_000_000;

/** The server decodes no more pixels. */
const MAX_PIXELS = 30_000_000;

/** The pixels of an image that was scaled down. */
const SCALED_PIXELS = 12_000_000;

const DATABASE = 'girih';
const STORE = 'images';

/** Images that are not kept: of messages that are not sent, and those for which the browser has no room. */
const unkept = new Map();

/** Reads a file. Rejects with a sentence. */
export async function imageOf(file) {
  const name = file.name || 'image';
  if (!TYPES.includes(file.type)) throw new Error(`${name} is no PNG, JPEG, WebP, GIF or BMP file.`);
  const bitmap = await createImageBitmap(file).catch(() => {
    throw new Error(`${name} cannot be read as an image.`);
  });
  try {
    const { width, height } = bitmap;
    const isLarge = file.size > MAX_BYTES || width * height > MAX_PIXELS;
    const image = isLarge ? await scaledDown(bitmap, file) : { blob: file, type: file.type, width, height };
    const { blob, ...description } = image;
    const id = newId();
    unkept.set(id, blob);
    return { id, name, bytes: blob.size, ...description };
  } finally {
    bitmap.close();
  }
}

/** A smaller JPEG, and the sentence that says so. */
async function scaledDown(bitmap, file) {
  const factor = Math.min(1, Math.sqrt(SCALED_PIXELS / (bitmap.width * bitmap.height)));
  const [width, height] = [bitmap.width, bitmap.height].map((side) => Math.max(1, Math.floor(side * factor)));
  const canvas = new OffscreenCanvas(width, height);
  const context = canvas.getContext('2d');
  context.imageSmoothingQuality = 'high';
  context.drawImage(bitmap, 0, 0, width, height);
  const type = 'image/jpeg';
  const blob = await canvas.convertToBlob({ type, quality: 0.92 });
  const size = `${(file.size / 1e6).toFixed(1)} MB, ${bitmap.width} × ${bitmap.height}`;
  return { blob, type, width, height, scaled: `Sent as a JPEG of ${width} × ${height}, as the file is too large (${size}).` };
}

/** Keeps images until they are removed. Rejects if the browser has no room: then they last as long as the page. */
export async function keep(ids) {
  for (const id of ids) {
    const blob = unkept.get(id);
    if (!blob) continue; // kept already, such as those of an edited message
    await inStore('readwrite', (store) => store.put(blob, id));
    unkept.delete(id);
  }
}

/** Forgets images. */
export async function remove(ids) {
  for (const id of ids) unkept.delete(id);
  if (ids.length === 0) return;
  // What cannot be removed is not found again, and takes room only.
  await inStore('readwrite', (store) => ids.map((id) => store.delete(id))).catch(() => {});
}

/** The bytes of an image; rejects with a sentence. */
export async function blobOf({ id, name }) {
  const blob = unkept.get(id) ?? (await inStore('readonly', (store) => store.get(id)).catch(() => null));
  if (blob) return blob;
  throw new Error(`The browser no longer has the image ${name}; delete its message, or send it again.`);
}

/** An image as a data URL. */
export async function urlOf(image) {
  const blob = await blobOf(image);
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    // The browser guesses types by names; the description has the one that was checked.
    reader.onload = () => resolve(`data:${image.type};base64,${reader.result.slice(reader.result.indexOf(',') + 1)}`);
    reader.onerror = () => reject(new Error(`The image ${image.name} cannot be read.`));
    reader.readAsDataURL(blob);
  });
}

/** The bytes of the file in a data URL of base64, to within two. */
export const bytesOf = (url) => Math.floor(((url.length - url.indexOf(',') - 1) * 3) / 4);

/** Takes the bytes of images out of the messages of a file. */
export function takeUrls(conversations) {
  for (const image of conversations.flatMap(({ messages }) => messages).flatMap(({ images }) => images ?? [])) {
    const base64 = image.url.slice(image.url.indexOf(',') + 1);
    const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
    unkept.set(image.id, new Blob([bytes], { type: image.type }));
    delete image.url;
  }
}

/** Why these images do not fit into one request, and what to remove: a sentence; '' if they fit. */
export function requestFault(images) {
  const spare = images.length - MAX_IMAGES;
  if (spare > 0) {
    return `The conversation would have ${images.length} images, and a request has at most ${MAX_IMAGES}. Remove ${spare}, or delete messages that have images.`;
  }
  const bytes = images.reduce((sum, image) => sum + (image.bytes ?? 0), 0);
  if (bytes <= MAX_REQUEST_BYTES) return '';
  const [size, most] = [bytes, MAX_REQUEST_BYTES].map((bytes) => `${(bytes / 1e6).toFixed(1)} MB`);
  return `The images of the conversation would have ${size}, and those of a request at most ${most}. Remove some, or delete messages that have large ones.`;
}

/** A request's body, with the images of its messages as OpenAI's API has them. Rejects with a sentence if they do not fit. */
export async function withImages(body) {
  const all = body.messages.flatMap(({ images }) => images ?? []);
  const sizes = await Promise.all(all.map(async (image) => ({ bytes: (await blobOf(image)).size })));
  const fault = requestFault(sizes);
  if (fault) throw new Error(fault);
  const messages = await Promise.all(
    body.messages.map(async ({ images, ...message }) => {
      if (!images) return message;
      const parts = await Promise.all(images.map(async (image) => ({ type: 'image_url', image_url: { url: await urlOf(image) } })));
      if (message.content !== '') parts.push({ type: 'text', text: message.content });
      return { ...message, content: parts };
    }),
  );
  return { ...body, messages };
}

/** The ids of the images of conversations. */
export function idsOf(conversations) {
  const messages = conversations.flatMap((conversation) => conversation.messages);
  return messages.flatMap(({ images }) => images?.map(({ id }) => id) ?? []);
}

/**
 * Adds the bytes of their images to conversations, for a file. Images that the browser has lost are left out, and a note in
 * their conversation says how many. Returns the number of all.
 */
export async function addUrls(conversations) {
  let lost = 0;
  for (const conversation of conversations) {
    const before = lost;
    for (const message of conversation.messages.filter(({ images }) => images)) {
      for (const image of message.images) image.url = await urlOf(image).catch(() => '');
      const kept = message.images.filter(({ url }) => url !== '');
      lost += message.images.length - kept.length;
      message.images = kept;
    }
    if (lost > before) conversation.note = lostNote(lost - before);
  }
  return lost;
}

/** The sentence of images that an exported file lacks. */
export function lostNote(count) {
  return count === 1 ? '1 image is left out: the browser no longer has it.' : `${count} images are left out: the browser no longer has them.`;
}

let opening = null;

/** Does `work` in a transaction with the store, and resolves to the result of its request. */
async function inStore(mode, work) {
  opening ??= open();
  const database = await opening.catch((error) => {
    opening = null;
    throw error;
  });
  return new Promise((resolve, reject) => {
    const transaction = database.transaction(STORE, mode);
    const request = work(transaction.objectStore(STORE));
    transaction.oncomplete = () => resolve(request.result);
    transaction.onabort = transaction.onerror = () => reject(transaction.error);
  });
}

function open() {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open(DATABASE, 1);
    request.onupgradeneeded = () => request.result.createObjectStore(STORE);
    request.onsuccess = () => {
      request.result.onclose = () => (opening = null);
      resolve(request.result);
    };
    request.onerror = () => reject(request.error);
  });
}
