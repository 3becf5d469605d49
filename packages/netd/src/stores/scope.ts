/** What a mount may ask of its bucket: reads, lists and writes of objects below its prefix. */
import type { ProxiedStore } from '@releap/contract/netd';

export interface S3Request {
  method: string;
  bucket: string;
  /** As it is sent, without the slash before it; empty: of the bucket. */
  rawKey: string;
  query: Record<string, string | string[]>;
  copySource: string | undefined;
}

export type Refusal = { status: number; code: string; message: string };

const LIST_PARAMETERS = new Set([
  'list-type',
  'prefix',
  'delimiter',
  'max-keys',
  'continuation-token',
  'start-after',
  'marker',
  'encoding-type',
  'fetch-owner',
]);
/** Of an object: none, or those of an upload in parts. `x-id` names the operation, and means nothing. */
const OBJECT_PARAMETERS: Record<string, ReadonlySet<string>> = {
  GET: new Set(['uploadId', 'max-parts', 'part-number-marker', 'x-id']),
  HEAD: new Set(['x-id']),
  PUT: new Set(['partNumber', 'uploadId', 'x-id']),
  POST: new Set(['uploads', 'uploadId', 'x-id']),
  DELETE: new Set(['uploadId', 'x-id']),
};

/** Undefined: it may. */
export function refusalOf(request: S3Request, store: ProxiedStore): Refusal | undefined {
  const { method, bucket, query, rawKey, copySource } = request;
  if (bucket !== store.bucket) return denied(`the mount is of bucket ${store.bucket}`);
  if (store.read_only && method !== 'GET' && method !== 'HEAD') return denied('the mount is read-only');
  if (rawKey === '') {
    if (method !== 'GET' || Object.keys(query).some((name) => !LIST_PARAMETERS.has(name)))
      return notSupported(method);
    const { prefix = '' } = query;
    return typeof prefix === 'string' && isBelow(prefix, store.prefix) ? undefined : outside(store);
  }
  const parameters = OBJECT_PARAMETERS[method];
  if (parameters === undefined || Object.keys(query).some((name) => !parameters.has(name)))
    return notSupported(method);
  if (method === 'POST' && !('uploads' in query) && !('uploadId' in query)) return notSupported(method);
  const key = decoded(rawKey);
  if (key === undefined || !isBelow(key, store.prefix)) return outside(store);
  if (copySource === undefined) return undefined;
  const source = decoded(copySource)?.replace(/^\//, '');
  const isOwn = source?.startsWith(`${store.bucket}/`) === true && !copySource.includes('?');
  return isOwn && isBelow(source.slice(store.bucket.length + 1), store.prefix) ? undefined : outside(store);
}

/** Servers that normalise paths would leave the prefix where a part is `..`. */
function isBelow(key: string, prefix: string): boolean {
  if (key.split('/').some((part) => part === '.' || part === '..')) return false;
  return prefix === '' || key.startsWith(`${prefix}/`);
}

function decoded(text: string): string | undefined {
  try {
    return decodeURIComponent(text);
  } catch {
    return undefined;
  }
}

const denied = (message: string): Refusal => ({ status: 403, code: 'AccessDenied', message });
const outside = ({ prefix }: ProxiedStore): Refusal =>
  denied(`the mount is of objects below ${JSON.stringify(prefix)}`);
const notSupported = (method: string): Refusal => ({
  status: 501,
  code: 'NotImplemented',
  message: `mounts do not send this ${method} request`,
});
