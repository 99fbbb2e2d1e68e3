// A server with a scripted model, in the shapes of girih's `/v1` routes, for tests of the page. The last
// message chooses the script. The headers of the page are those of `crates/serve/src/page.rs`.
import { readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';

const PAGE = process.env.PAGE ?? new URL('../../crates/serve/page/', import.meta.url).pathname;
const SOURCE = readFileSync(new URL('../../crates/serve/src/page.rs', import.meta.url), 'utf8');
export const POLICY = SOURCE.match(/const POLICY: &str = "([^"]*)"/)[1].replace(/\\\n\s*/g, '');

const FILES = {
  '/': ['index.html', 'text/html; charset=utf-8'],
  '/app.js': ['app.js', 'text/javascript; charset=utf-8'],
  '/app.css': ['app.css', 'text/css; charset=utf-8'],
  '/icon.svg': ['icon.svg', 'image/svg+xml'],
  '/favicon.ico': ['icon.svg', 'image/svg+xml'],
  '/LICENSES.txt': ['LICENSES.txt', 'text/plain; charset=utf-8'],
};

/** Markdown that would run scripts or fetch something if it were trusted. `FOREIGN` is another server. */
export const HOSTILE = (foreign) => `# Heading <img src=x onerror="window.hacked=1">

<script>window.hacked = 2</script>

<img src="${foreign}/html.png" onerror="window.hacked=3"><iframe src="${foreign}/frame"></iframe>

![a picture](${foreign}/markdown.png) and ![inline](data:image/svg+xml;base64,PHN2Zy8+)

[script](javascript:window.hacked=4) [entity](javascript&#58;window.hacked=5) [data](data:text/html,<script>window.hacked=6</script>)
[relative](../../etc) [tab](java&#9;script:window.hacked=7) <javascript:window.hacked=8> [vb](vbscript:x) [file](file:///etc/passwd)

<style>@import url("${foreign}/style.css"); body { display: none }</style>
<svg onload="window.hacked=9"><a xlink:href="javascript:window.hacked=10">x</a></svg>
<form action="${foreign}"><input name=key><button>send</button></form>

[good](https://example.org/page?a=1&amp;b=2) and https://example.org/auto

\`\`\`html
<script>window.hacked = 11</script>
\`\`\`

| a<script>window.hacked=12</script> | b |
|---|--:|
| <b onclick="window.hacked=13">x</b> | 2 |
`;

export const MARKDOWN = `Girih has **ten-pointed** stars and *straps*. A list:

1. Choose a tiling of decagons and pentagons.
2. Draw lines through the middles of the edges:
   - two at each middle,
   - at 72 degrees.

## The angle

| tile | sides | angle |
|---|--:|--:|
| decagon | 10 | 144° |
| pentagon | 5 | 108° |

\`\`\`rust
/// The interior angle of a regular polygon, in degrees.
fn angle(sides: u32) -> f64 {
    180.0 * f64::from(sides - 2) / f64::from(sides)
}
\`\`\`

- [x] Draw the edges
- [ ] Fill the *stars*

- [ ] in a paragraph

- [ ] of its own

The angle is \\(\\alpha_1 * 2 + \\beta_1 * 3\\), or $E=mc^2$ and $a_i*b_i*c_i$; it costs $5 or **$6**, and 値\\(x_1\\)は:

\\[
- \\sum_{i<n} x_i
= \\begin{matrix} a & b \\\\ c & d \\end{matrix}
\\]

| set | size |
|---|---|
| $|A|$ | $$|B|$$ |

> A strap never ends at an edge; see [the study](https://example.org/study).

Use \`angle(10)\` for the decagon.`;

const TOKEN = 'f'.repeat(64);

const text = (content) => ({ content });
const words = (content) => content.match(/\S+\s*|\s+/g).map(text);
const call = (index, id, name, json) => [
  { tool_calls: [{ index, id, type: 'function', function: { name, arguments: '' } }] },
  ...json.match(/.{1,6}/g).map((part) => ({ tool_calls: [{ index, function: { arguments: part } }] })),
];

/** The ids of the characters of a text. */
export const codes = (characters) => Array.from(characters, (character) => character.codePointAt(0));

/** How a reply goes on that the script `short` began. */
const REST = { deltas: words(' limit of tokens, and goes on.'), pause: 2 };

/** The deltas of a reply, the milliseconds between them and the reason of the end. */
function script(body, options) {
  const last = body.messages.at(-1);
  const asked = Array.isArray(last.content) ? last.content.map((part) => part.text ?? 'IMAGE').join(' ') : String(last.content);
  if (last.role === 'tool') {
    const results = body.messages.filter(({ role }) => role === 'tool').map(({ content }) => content);
    return { deltas: words(`The results are ${results.join(' and ')}.`) };
  }
  if (asked.includes('hostile')) return { deltas: HOSTILE(options.foreign).match(/[^]{1,40}/g).map(text) };
  if (asked.includes('markdown')) return { deltas: MARKDOWN.match(/[^]{1,8}/g).map(text) };
  if (asked.includes('nest')) return { deltas: ['>'.repeat(30_000), '\n\n', '> '.repeat(200), 'end'].map(text) };
  if (asked.includes('slow')) return { deltas: words('word '.repeat(400)), pause: 25 };
  if (asked.includes('short')) return { deltas: words('This ends at the'), finish: 'length' };
  if (asked.includes('half')) return { deltas: words('This ends at the \ufffd'), finish: 'length' };
  if (asked.includes('break')) return { deltas: words('Something arrives, then'), breaks: true };
  if (asked.includes('fault')) return { deltas: words('Something arrives, then'), error: 'the step failed: NaN in layer 3' };
  if (asked.includes('think')) {
    const thinking = 'The user asks for the sum. Two and two are four. '.repeat(3);
    return { deltas: [...thinking.match(/\S+\s*/g).map((part) => ({ reasoning_content: part })), ...words('It is 4.')], pause: 20 };
  }
  if (asked.includes('weather') && body.tools) {
    const deltas = [
      ...words('I look it up.'),
      ...call(0, 'call_a', 'get_weather', '{"city":"Isfahan","days":[1,2],"units":{"temperature":"celsius"}}'),
      ...call(1, 'call_b', 'get_time', '{"city":"Isfahan"}'),
    ];
    return { deltas, finish: 'tool_calls' };
  }
  if (body.response_format) return { deltas: ['{"name":"Isf', 'ahan","population":1.0e6,', '"twins":[],"at":{"lat":32.65}}'].map(text) };
  const turn = body.messages.filter(({ role }) => role === 'user').length;
  const deltas = words(`You said: ${asked} (message ${turn}, seed ${body.seed ?? 'none'})`);
  if (asked.includes('together')) return { deltas, pause: 0 };
  return { deltas, pause: asked.includes('steady') ? 40 : 2 };
}

/** Starts the server on a free port of loopback. `options`: `key`, `foreign`, `status` and its `refusal`, `token`, `models`, and
 * `listing`, the milliseconds before the list of models. */
export async function startMock(options = {}) {
  const requests = []; // bodies of chat completions
  const closed = []; // the deltas that were sent until a client left
  const server = createServer(async (request, response) => {
    const { pathname } = new URL(request.url, 'http://localhost');
    const file = FILES[pathname];
    if (file) {
      response.writeHead(200, { 'content-type': file[1], 'content-security-policy': POLICY, 'x-content-type-options': 'nosniff' });
      return response.end(readFileSync(PAGE + file[0]));
    }
    if (pathname === '/page-token') return response.end(options.token ?? TOKEN);
    const json = (status, value, headers = {}) => {
      response.writeHead(status, { 'content-type': 'application/json', ...headers });
      response.end(JSON.stringify(value));
    };
    const refuse = (status, message, headers, code = null) => json(status, { error: { message, type: 'invalid_request_error', code } }, headers);
    if (request.headers['x-girih-page'] !== (options.token ?? TOKEN)) return refuse(403, 'the request is not of the page', {}, 'page_token_invalid');
    if (options.key && request.headers.authorization !== `Bearer ${options.key}`) {
      return refuse(401, request.headers.authorization ? 'the key is not valid' : 'a key is needed: Authorization: Bearer KEY');
    }
    if (pathname === '/v1/models') {
      await sleep(options.listing ?? 0);
      const architecture = (id) => ({ input_modalities: id === 'girih-8b' ? ['text', 'image'] : ['text'], output_modalities: ['text'] });
      const model = (id, max_model_len) => ({ id, object: 'model', created: 0, owned_by: 'girih', max_model_len, architecture: architecture(id) });
      return json(200, { object: 'list', data: (options.models ?? ['girih-8b', 'girih-1b']).map((id, at) => model(id, 8192 >> at)) });
    }
    const isChat = pathname === '/v1/chat/completions';
    if (!['/v1/chat/completions', '/v1/completions', '/tokenize'].includes(pathname) || request.method !== 'POST') return refuse(404, `no route ${pathname}`);
    let received = '';
    for await (const part of request) received += part;
    const body = JSON.parse(received);
    // A token is a character; the tokenizer begins each text with ▁.
    if (pathname === '/tokenize') return json(200, { tokens: body.messages ? [1, body.messages.length] : codes(`▁${body.prompt}`) });
    requests.push(body);
    if (options.status) return refuse(options.status, options.refusal ?? 'the queue is full: 64 requests wait', options.refusal ? {} : { 'retry-after': '7' });
    response.writeHead(200, { 'content-type': 'text/event-stream', 'cache-control': 'no-store' });
    const { deltas, pause = 2, finish = 'stop', error, breaks } = isChat ? script(body, options) : REST;
    const chunk = (choices, more) =>
      response.write(`data: ${JSON.stringify({ id: 'chatcmpl-1', object: 'chat.completion.chunk', created: 0, model: body.model, choices, ...more })}\n\n`);
    let sent = 0;
    let gone = false;
    response.on('close', () => {
      gone = true;
      if (!response.writableEnded) closed.push(sent);
    });
    if (pause === 0) response.cork(); // until its end: it arrives as one piece
    response.write(': ping\n\n');
    if (isChat) chunk([{ index: 0, delta: { role: 'assistant', content: '' }, finish_reason: null }]);
    for (const delta of deltas) {
      if (pause > 0) await sleep(pause);
      if (gone) return;
      chunk([{ index: 0, ...(isChat ? { delta } : { text: delta.content }), finish_reason: null }]);
      sent++;
    }
    if (breaks) return sleep(100).then(() => response.destroy());
    if (error) {
      response.write(`data: ${JSON.stringify({ error: { message: error, type: 'server_error', code: 'step_failed' } })}\n\n`);
      return response.end();
    }
    chunk([{ index: 0, ...(isChat ? { delta: {} } : { text: '' }), finish_reason: finish }]);
    const prompt = isChat ? 20 * body.messages.length : body.prompt.length;
    const usage = { prompt_tokens: prompt, completion_tokens: deltas.length, total_tokens: prompt + deltas.length };
    usage.prompt_tokens_details = { cached_tokens: body.messages?.length > 1 ? prompt - 20 : 0 };
    if (body.stream_options?.include_usage) chunk([], { usage });
    response.end('data: [DONE]\n\n');
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  const close = () => {
    server.closeAllConnections();
    server.close();
  };
  return { url: `http://127.0.0.1:${server.address().port}/`, requests, closed, options, close };
}

if (process.argv[1] === new URL(import.meta.url).pathname) console.log((await startMock()).url);
