/**
 * Takes the requests of mounts, which guests sign with keys that are of use only here, checks signature and scope, and sends them on
 * with the credentials of the store. Bodies are passed on as they come: what the guest has said of their digest is signed again.
 */
import type { lookup as dnsLookup } from 'node:dns';
import { once } from 'node:events';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { pipeline } from 'node:stream/promises';
import type { ProxiedStore } from '@releap/contract/netd';
import { readBounded } from '@releap/contract/read-bounded';
import type { Log } from '../log.ts';
import { type Refusal, refusalOf } from './scope.ts';
import { isSignedBy, readAuthorization, type S3Credentials, sign, type SignedHeaders } from './signature.ts';
import { failureText, type Target, targetOf, Upstream } from './upstream.ts';

const MAX_REQUESTS = { each: 128, all: 1024 };
const HEADERS_MS = 30_000;
/** Shorter than the silence after which a mount gives up a request. */
const UNKNOWN_MS = 20_000;
const HEADER_MAX_BYTES = 32 * 1024;
/** Error documents are read in full, because they may repeat credentials. */
const ERROR_MAX_BYTES = 256 * 1024;
/** Headers of a request that the server gets; those of `x-amz-` in addition. */
const PASSED = new Set([
  'cache-control',
  'content-disposition',
  'content-encoding',
  'content-language',
  'content-length',
  'content-md5',
  'content-type',
  'expires',
  'if-match',
  'if-modified-since',
  'if-none-match',
  'if-unmodified-since',
  'range',
]);
const PASSED_AMZ =
  /^x-amz-(?:content-sha256|meta-[!-~]+|copy-source|copy-source-(?:if-[a-z-]+|range)|metadata-directive|storage-class|checksum-[a-z0-9-]+|sdk-checksum-algorithm)$/;
const HOP_BY_HOP = new Set([
  'connection',
  'keep-alive',
  'proxy-authenticate',
  'te',
  'trailer',
  'transfer-encoding',
  'upgrade',
]);

interface Sandbox {
  vmId: string;
  address: string;
  stores: readonly ProxiedStore[];
  requests: number;
}

export class StoreProxy {
  readonly #log: Log;
  readonly #lookup: typeof dnsLookup | undefined;
  readonly #server: Server;
  readonly #byVm = new Map<string, Sandbox>();
  readonly #byAddress = new Map<string, Sandbox>();
  /** Requests of addresses that the runner may still name. */
  readonly #unknown = new Set<() => void>();
  #isSynced = false;
  #upstream = new Upstream([]);
  #settings = '';
  #requests = 0;

  /** @param lookup resolves the names of endpoints; default: as the host does */
  constructor(log: Log, lookup?: typeof dnsLookup) {
    this.#log = log;
    this.#lookup = lookup;
    this.#server = createServer(
      { headersTimeout: HEADERS_MS, requestTimeout: 0, maxHeaderSize: HEADER_MAX_BYTES, noDelay: true },
      (request, response) => void this.#serve(request, response),
    );
  }

  get isEmpty(): boolean {
    return this.#byVm.size === 0;
  }

  /** @returns the port */
  async listen(address: string): Promise<number> {
    this.#server.listen(0, address);
    await once(this.#server, 'listening');
    return (this.#server.address() as AddressInfo).port;
  }

  configure(privateHosts: readonly string[], extraCa?: string): void {
    const settings = JSON.stringify([privateHosts, extraCa]);
    if (settings === this.#settings) return;
    this.#settings = settings;
    // Requests in progress end on their connections.
    this.#upstream = new Upstream(privateHosts, extraCa, this.#lookup);
  }

  put(vmId: string, address: string, stores: readonly ProxiedStore[]): void {
    const known = this.#byVm.get(vmId);
    if (known !== undefined && known.address === address) {
      known.stores = stores;
      return;
    }
    this.remove(vmId);
    const sandbox = { vmId, address, stores, requests: 0 };
    this.#byVm.set(vmId, sandbox);
    this.#byAddress.set(address, sandbox);
    for (const look of this.#unknown) look();
  }

  remove(vmId: string): void {
    const sandbox = this.#byVm.get(vmId);
    if (sandbox === undefined) return;
    this.#byVm.delete(vmId);
    // Its address may be another's already.
    if (this.#byAddress.get(sandbox.address) === sandbox) this.#byAddress.delete(sandbox.address);
  }

  /** The runner has put all that there is: removes what is not in `keep`. */
  keepOnly(keep: ReadonlySet<string>): void {
    for (const vmId of this.#byVm.keys()) if (!keep.has(vmId)) this.remove(vmId);
    this.#isSynced = true;
    for (const look of this.#unknown) look();
  }

  async close(): Promise<void> {
    this.#server.closeAllConnections();
    this.#server.close();
    await once(this.#server, 'close');
    this.#upstream.close();
  }

  async #serve(request: IncomingMessage, response: ServerResponse): Promise<void> {
    request.on('error', () => undefined);
    response.on('error', () => undefined);
    const sandbox = await this.#sandboxAt(plain(request.socket.remoteAddress));
    if (sandbox === undefined) return refuse(response, denied('the sandbox has no object store'));
    if (sandbox.requests >= MAX_REQUESTS.each || this.#requests >= MAX_REQUESTS.all)
      return refuse(response, { status: 503, code: 'SlowDown', message: 'too many requests at once' });
    sandbox.requests += 1;
    this.#requests += 1;
    try {
      await this.#answer(sandbox, request, response);
    } catch (error) {
      const why = failureText(error);
      if (response.headersSent) response.destroy();
      else {
        this.#log.warn({ vm_id: sandbox.vmId, why }, 'a request to an object store failed');
        refuse(response, {
          status: 503,
          code: 'ServiceUnavailable',
          message: `the endpoint of the object store cannot be used: ${why}`,
        });
      }
    } finally {
      sandbox.requests -= 1;
      this.#requests -= 1;
    }
  }

  /** A proxy that was just started listens before the runner has told it of all sandboxes. */
  async #sandboxAt(address: string): Promise<Sandbox | undefined> {
    const known = this.#byAddress.get(address);
    if (known !== undefined || this.#isSynced || this.#unknown.size >= MAX_REQUESTS.all) return known;
    const told = Promise.withResolvers<void>();
    const look = (): void => {
      if (this.#isSynced || this.#byAddress.has(address)) told.resolve();
    };
    this.#unknown.add(look);
    const timer = setTimeout(told.resolve, UNKNOWN_MS);
    await told.promise;
    clearTimeout(timer);
    this.#unknown.delete(look);
    return this.#byAddress.get(address);
  }

  async #answer(sandbox: Sandbox, request: IncomingMessage, response: ServerResponse): Promise<void> {
    const { method = '', url = '' } = request;
    const authorization = readAuthorization(request.headers.authorization);
    const store = sandbox.stores.find((one) => one.guest_access_key === authorization?.accessKeyId);
    const parts = readUrl(url);
    if (authorization === undefined || store === undefined || parts === undefined)
      return refuse(response, denied('the request is not signed with the key of a mount of this sandbox'));
    const headers = singleHeaders(request);
    const { path, query, bucket, rawKey } = parts;
    if (!(await isSignedBy({ method, path, query, headers }, authorization, store.guest_secret_key)))
      return refuse(response, {
        status: 403,
        code: 'SignatureDoesNotMatch',
        message: 'the signature is not that of the key',
      });
    const copySource = headers['x-amz-copy-source'];
    const refusal = refusalOf({ method, bucket, rawKey, query, copySource }, store);
    if (refusal !== undefined) return refuse(response, refusal);
    const digest = headers['x-amz-content-sha256'] ?? '';
    if (!/^(?:[0-9a-f]{64}|UNSIGNED-PAYLOAD)$/.test(digest))
      return refuse(response, {
        status: 501,
        code: 'NotImplemented',
        message: 'bodies are sent with their SHA-256, or UNSIGNED-PAYLOAD',
      });
    const hasBody = method === 'PUT' || method === 'POST';
    if (hasBody && headers['content-length'] === undefined)
      return refuse(response, {
        status: 411,
        code: 'MissingContentLength',
        message: 'a length is needed',
      });
    if (store.credentials === undefined)
      return refuse(response, denied(store.unusable ?? 'the credentials of the object store cannot be read'));
    const { access_key, secret_key, session_token } = store.credentials;
    const credentials: S3Credentials = {
      accessKeyId: access_key,
      secretAccessKey: secret_key,
      ...(session_token !== undefined && { sessionToken: session_token }),
    };
    const target = targetOf(store);
    const outgoing = await signedFor(target, { method, rawKey, query, headers }, credentials);
    const upstream = this.#upstream.request(target, outgoing);
    const gone = (): void => void upstream.destroy();
    response.once('close', gone);
    const answered = once(upstream, 'response') as Promise<[IncomingMessage]>;
    if (hasBody) pipeline(request, upstream).catch((error: unknown) => upstream.destroy(error as Error));
    else upstream.end();
    const [answer] = await answered;
    upstream.on('error', () => answer.destroy());
    await passOn(answer, response, store, credentials);
    response.off('close', gone);
  }
}

/** The request as the server gets it. */
async function signedFor(
  { url, path, region }: Target,
  {
    method,
    rawKey,
    query,
    headers,
  }: { method: string; rawKey: string; query: Record<string, string | string[]>; headers: SignedHeaders },
  credentials: S3Credentials,
): Promise<{ method: string; path: string; headers: SignedHeaders }> {
  const kept = Object.entries(headers).filter(([name]) => PASSED.has(name) || PASSED_AMZ.test(name));
  const to = rawKey === '' && path !== '/' ? path.slice(0, -1) : `${path}${rawKey}`;
  const signed = await sign(
    { method, path: to, query, headers: { ...Object.fromEntries(kept), host: url.host } },
    credentials,
    { region },
  );
  const text = queryText(query);
  // Otherwise the server may compress what rclone expects as it is.
  return {
    method,
    path: text === '' ? to : `${to}?${text}`,
    headers: { ...signed, 'accept-encoding': 'identity' },
  };
}

async function passOn(
  answer: IncomingMessage,
  response: ServerResponse,
  store: ProxiedStore,
  credentials: S3Credentials,
): Promise<void> {
  const { statusCode: status = 502 } = answer;
  const headers = Object.entries(answer.headers).filter(([name]) => !HOP_BY_HOP.has(name));
  if (status >= 300 && status < 400 && status !== 304) {
    answer.resume();
    const region = String(answer.headers['x-amz-bucket-region'] ?? 'another region');
    return refuse(response, {
      status: 400,
      code: 'PermanentRedirect',
      message: `the bucket is in ${region}: create the object store with that region and its endpoint`,
    });
  }
  if (status < 400) {
    response.writeHead(status, Object.fromEntries(headers));
    return await pipeline(answer, response);
  }
  const body = await readBounded(answer, ERROR_MAX_BYTES, () => new Error('it sent too long an error'));
  const text = scrubbed(body.toString('utf8'), store, credentials);
  const own = headers.filter(([name]) => name === 'content-type' || name === 'retry-after');
  response.writeHead(status, Object.fromEntries(own));
  response.end(text);
}

/** Servers repeat access keys and tokens in errors of signatures. */
function scrubbed(text: string, store: ProxiedStore, credentials: S3Credentials): string {
  const { accessKeyId, secretAccessKey, sessionToken } = credentials;
  let clean = text.replaceAll(secretAccessKey, '*').replaceAll(accessKeyId, store.guest_access_key);
  if (sessionToken !== undefined) clean = clean.replaceAll(sessionToken, '*');
  // The text that was to be signed has the token in it too, in other forms.
  return clean.replaceAll(/<(StringToSign|CanonicalRequest)(Bytes)?>[^<]*<\/\1\2>/g, '');
}

/** `/bucket/key?query`; undefined for what is of another form. */
function readUrl(
  url: string,
): { path: string; bucket: string; rawKey: string; query: Record<string, string | string[]> } | undefined {
  const at = url.indexOf('?');
  const path = at < 0 ? url : url.slice(0, at);
  const match = /^\/([^/]+)(?:\/(.*))?$/.exec(path);
  if (match === null || /[^!-~]/.test(url)) return undefined;
  const query: Record<string, string | string[]> = {};
  try {
    for (const part of at < 0 ? [] : url.slice(at + 1).split('&')) {
      if (part === '') continue;
      const equals = part.indexOf('=');
      const name = decodeURIComponent(equals < 0 ? part : part.slice(0, equals));
      const value = equals < 0 ? '' : decodeURIComponent(part.slice(equals + 1).replaceAll('+', ' '));
      // Servers read parameters that are there twice differently.
      if (Object.hasOwn(query, name)) return undefined;
      query[name] = value;
    }
    return { path, bucket: decodeURIComponent(match[1] ?? ''), rawKey: match[2] ?? '', query };
  } catch {
    return undefined;
  }
}

function queryText(query: Record<string, string | string[]>): string {
  return Object.entries(query)
    .map(([name, value]) => `${escaped(name)}=${escaped(String(value))}`)
    .join('&');
}

const escaped = (text: string): string =>
  encodeURIComponent(text).replaceAll(
    /[!'()*]/g,
    (char) => `%${char.charCodeAt(0).toString(16).toUpperCase()}`,
  );

/** Node joins headers that are there twice; S3 signs them joined too. */
function singleHeaders(request: IncomingMessage): SignedHeaders {
  return Object.fromEntries(
    Object.entries(request.headers).map(([name, value]) => [
      name,
      Array.isArray(value) ? value.join(',') : (value ?? ''),
    ]),
  );
}

function refuse(response: ServerResponse, { status, code, message }: Refusal): void {
  if (response.headersSent || response.destroyed) return void response.destroy();
  const text = message.replaceAll(
    /[<>&]/g,
    (char) => ({ '<': '&lt;', '>': '&gt;', '&': '&amp;' })[char] ?? '',
  );
  // The body of the request may not have been read.
  response.writeHead(status, { 'content-type': 'application/xml', connection: 'close' });
  response.end(
    `<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>${code}</Code><Message>${text}</Message></Error>`,
  );
}

const denied = (message: string): Refusal => ({ status: 403, code: 'AccessDenied', message });
const plain = (address = ''): string => address.replace(/^::ffff:/, '');
