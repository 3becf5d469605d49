/**
 * `egress-server KEY CERT FILES`: a server outside, for tests of secrets. HTTPS (HTTP/2 too) at 443 and HTTP at 8080 answer with
 * what they were sent, as JSON. Beside it a redirect, and a git repository, a Python index and an npm registry that want the
 * value of the secret as a password or token. `ready` is printed when it listens.
 */
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import { createSecureServer, type Http2ServerRequest, type Http2ServerResponse } from 'node:http2';
import { join } from 'node:path';
import { gunzipSync } from 'node:zlib';

const [keyPath = '', certPath = '', files = ''] = process.argv.slice(2);
const COMMIT = 'c0ffee'.repeat(7).slice(0, 40);
/** Values of the tests end with it. */
const PASSWORD_END = '-4d7a';

type Request = IncomingMessage | Http2ServerRequest;

/** Bearer and Basic credentials that end as the value does. */
function isAuthorized({ headers: { authorization = '' } }: Request): boolean {
  const [scheme = '', credentials = ''] = authorization.split(' ');
  const text = scheme === 'Basic' ? Buffer.from(credentials, 'base64').toString() : credentials;
  return text.endsWith(PASSWORD_END);
}

function npmPackage(host: string): string {
  const data = readFileSync(join(files, 'hello-1.0.0.tgz'));
  const integrity = `sha512-${createHash('sha512').update(data).digest('base64')}`;
  const dist = { tarball: `https://${host}/npm/-/hello-1.0.0.tgz`, integrity };
  const version = { name: 'hello', version: '1.0.0', dist };
  return JSON.stringify({ name: 'hello', 'dist-tags': { latest: '1.0.0' }, versions: { '1.0.0': version } });
}

interface Reply {
  status?: number;
  headers?: Record<string, string>;
  body?: string | Buffer;
}

function reply(request: Request, body: string): Reply {
  const { url = '/', headers } = request;
  const host = String(headers[':authority'] ?? headers.host);
  const key = headers['x-key'];
  if (url.startsWith('/redirect'))
    return {
      status: 302,
      headers: { location: `https://other.example/?from=${encodeURIComponent(String(key))}` },
    };
  const isPrivate = ['/repo', '/simple', '/wheels', '/npm'].some((path) => url.startsWith(path));
  if (isPrivate && headers.authorization === undefined)
    return { status: 401, headers: { 'www-authenticate': 'Basic realm="git"' } };
  if (isPrivate && !isAuthorized(request)) return { status: 403 };
  if (url.startsWith('/repo')) return { body: `${COMMIT}\trefs/heads/main\n` };
  if (url === '/simple/hello/')
    return {
      headers: { 'content-type': 'text/html' },
      body: '<a href="/wheels/hello-1.0-py3-none-any.whl">hello-1.0-py3-none-any.whl</a>',
    };
  if (url === '/wheels/hello-1.0-py3-none-any.whl')
    return { body: readFileSync(join(files, 'hello-1.0-py3-none-any.whl')) };
  if (url === '/npm/hello')
    return { headers: { 'content-type': 'application/json' }, body: npmPackage(host) };
  if (url === '/npm/-/hello-1.0.0.tgz') return { body: readFileSync(join(files, 'hello-1.0.0.tgz')) };
  const version = request.httpVersion === '2.0' ? { version: request.httpVersion } : {};
  // What was received may be replaced in what is answered; its length is not.
  const length = body === '' ? {} : { length: body.length };
  return { body: JSON.stringify({ url, body, ...length, host, key, seen: key?.length, ...version }) };
}

async function answer(request: Request, response: ServerResponse | Http2ServerResponse): Promise<void> {
  const chunks: Buffer[] = [];
  for await (const chunk of request) chunks.push(chunk as Buffer);
  const body = Buffer.concat(chunks);
  const text = (request.headers['content-encoding'] === 'gzip' ? gunzipSync(body) : body).toString('latin1');
  const { status = 200, headers = {}, body: answered = '' } = reply(request, text);
  (response as ServerResponse).writeHead(status, headers).end(answered);
}

createServer((request, response) => void answer(request, response)).listen(8080);
createSecureServer(
  { key: readFileSync(keyPath), cert: readFileSync(certPath), allowHTTP1: true },
  (request, response) => void answer(request, response),
).listen(443, () => console.log('ready'));
