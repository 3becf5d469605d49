/** Resolves the create of an object store. Pure. */
import { BOUNDS, LIMITS } from '../../wire/platform/limits.ts';
import { OBJECT_STORE_NAME_FORM, type ObjectStoreCreateRequest } from '../../wire/storage/object-store.ts';
import { SECRET_NAME_FORM } from '../../wire/storage/secret.ts';
import { badRequest, notFound, quote } from '../errors.ts';
import { isSecretName } from './secret.ts';

/** A create after every rule that needs no lookup. */
export type ResolvedObjectStore = Required<Omit<ObjectStoreCreateRequest, 'session_token_secret'>> & {
  session_token_secret: string | null;
};

/** Throws a 400 for the first violated rule. */
export function resolveObjectStoreCreate(body: ObjectStoreCreateRequest): ResolvedObjectStore {
  return {
    name: checkName(body.name),
    bucket: checkBucket(body.bucket),
    access_key_secret: checkSecretName('access_key_secret', body.access_key_secret),
    secret_key_secret: checkSecretName('secret_key_secret', body.secret_key_secret),
    session_token_secret:
      body.session_token_secret === undefined
        ? null
        : checkSecretName('session_token_secret', body.session_token_secret),
    endpoint: checkEndpoint(body.endpoint ?? ''),
    region: checkRegion(body.region ?? ''),
    prefix: checkPrefix(body.prefix ?? ''),
    path_style: body.path_style ?? false,
    read_only: body.read_only ?? false,
    provider: body.provider ?? '',
    dir_cache_secs: body.dir_cache_secs ?? 0,
  };
}

/** The same 404 for an unknown id or name, a deleted store, and another project's. */
export function objectStoreNotFound(idOrName: string): Error {
  return notFound(`object store ${quote(idOrName)} not found`, 'object_store_not_found');
}

function checkName(name: string): string {
  if (name.length <= LIMITS.objectStoreNameChars && /^[A-Za-z0-9._-]+$/.test(name)) return name;
  throw badRequest(`name must be ${OBJECT_STORE_NAME_FORM}, but was ${quote(name)}`);
}

/** Wider than the rules of AWS: other services have their own, such as `tenant:bucket` of Ceph. */
function checkBucket(bucket: string): string {
  if (/^[A-Za-z0-9._:-]+$/.test(bucket) && !/^\.{1,2}$/.test(bucket)) return bucket;
  throw badRequest(
    `bucket must be 1 to ${BOUNDS.bucketChars} characters of A-Z a-z 0-9 . _ : -, but was ${quote(bucket)}`,
  );
}

function checkSecretName(field: string, name: string): string {
  if (isSecretName(name)) return name;
  throw badRequest(
    `${field} must be the name of a secret, which matches ${SECRET_NAME_FORM}, but was ${quote(name)}`,
  );
}

/** Credentials belong into secrets, and a query would be part of every request. */
function checkEndpoint(text: string): string {
  if (text === '') return '';
  const refuse = (why: string): Error =>
    badRequest(`endpoint must be an http:// or https:// URL${why}, but was ${quote(text)}`);
  // URL removes tabs and line breaks, and accepts backslashes and missing slashes.
  if (!/^https?:\/\/[^\s\\/]/i.test(text) || /[\s\\]/.test(text) || !URL.canParse(text)) throw refuse('');
  const url = new URL(text);
  if (url.username !== '' || url.password !== '') {
    // Not quoted: it may have a password.
    throw badRequest('endpoint must be an http:// or https:// URL without user name and password');
  }
  if (/[?#]/.test(text)) throw refuse(' without query and fragment');
  return text;
}

function checkRegion(region: string): string {
  if (region === '' || /^[A-Za-z0-9][A-Za-z0-9._-]*$/.test(region)) return region;
  throw badRequest(`region must be like us-east-1, or empty, but was ${quote(region)}`);
}

function checkPrefix(text: string): string {
  const prefix = text.replace(/^\/+|\/+$/g, '');
  if (Buffer.byteLength(prefix) > BOUNDS.keyPrefixChars)
    throw badRequest(`prefix must have at most ${BOUNDS.keyPrefixChars} bytes, but was ${quote(text)}`);
  // oxlint-disable-next-line no-control-regex -- it searches for control characters
  if (/[\u0000-\u001f\u007f]/.test(prefix) || !prefix.isWellFormed())
    throw badRequest(`prefix must have no control characters, but was ${quote(text)}`);
  if (prefix !== '' && prefix.split('/').some((part) => part === '' || part === '.' || part === '..'))
    throw badRequest(`prefix must have no empty part, . or .. between its slashes, but was ${quote(text)}`);
  return prefix;
}
