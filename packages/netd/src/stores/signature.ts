/** AWS Signature Version 4: checks the signatures of guests, and signs with the credentials of the store. */
import { createHash, createHmac, timingSafeEqual } from 'node:crypto';
import { SignatureV4 } from '@smithy/signature-v4';

/** Headers by lower-case name. */
export type SignedHeaders = Record<string, string>;

export interface SignableRequest {
  method: string;
  /** As it is sent: S3 signs the path with its escapes. */
  path: string;
  query: Record<string, string | string[]>;
  headers: SignedHeaders;
}

export interface S3Credentials {
  accessKeyId: string;
  secretAccessKey: string;
  sessionToken?: string;
}

/** What an `Authorization` header says. */
export interface Authorization {
  accessKeyId: string;
  region: string;
  /** Names of headers. */
  signed: ReadonlySet<string>;
  signature: Buffer;
}

const FORM =
  /^AWS4-HMAC-SHA256 Credential=([^/,\s]{1,128})\/(\d{8})\/([^/,\s]{1,64})\/s3\/aws4_request,\s*SignedHeaders=([a-z0-9;-]{1,4096}),\s*Signature=([0-9a-f]{64})$/;
const DATE = /^(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)Z$/;
/** Without these in the signature it is of use for other requests. */
const REQUIRED = ['host', 'x-amz-content-sha256', 'x-amz-date'];

class Sha256 {
  readonly #hash: ReturnType<typeof createHash> | ReturnType<typeof createHmac>;

  constructor(secret?: string | ArrayBuffer | ArrayBufferView) {
    const key = typeof secret === 'string' || secret === undefined ? secret : bytesOf(secret);
    this.#hash = key === undefined ? createHash('sha256') : createHmac('sha256', key);
  }

  update(data: string | ArrayBuffer | ArrayBufferView): void {
    this.#hash.update(typeof data === 'string' ? data : bytesOf(data));
  }

  digest(): Promise<Uint8Array> {
    return Promise.resolve(this.#hash.digest());
  }

  reset(): void {
    throw new Error('not used');
  }
}

function bytesOf(data: ArrayBuffer | ArrayBufferView): Buffer {
  return ArrayBuffer.isView(data)
    ? Buffer.from(data.buffer, data.byteOffset, data.byteLength)
    : Buffer.from(data);
}

export function readAuthorization(header: string | undefined): Authorization | undefined {
  const match = FORM.exec(header ?? '');
  if (match === null) return undefined;
  const [, accessKeyId = '', , region = '', names = '', signature = ''] = match;
  const signed = new Set(names.split(';'));
  if (REQUIRED.some((name) => !signed.has(name))) return undefined;
  return { accessKeyId, region, signed, signature: Buffer.from(signature, 'hex') };
}

/**
 * Whether the guest has signed this request with that secret. Its time is not checked: the clock of a guest that was paused may be
 * wrong for a moment, and only the guest itself could repeat a request.
 */
export async function isSignedBy(
  request: SignableRequest,
  { accessKeyId, region, signed, signature }: Authorization,
  secretAccessKey: string,
): Promise<boolean> {
  const headers = Object.fromEntries(Object.entries(request.headers).filter(([name]) => signed.has(name)));
  const date = DATE.exec(headers['x-amz-date'] ?? '');
  if (date === null || Object.keys(headers).length !== signed.size) return false;
  const [year, month, day, hour, minute, second] = date.slice(1).map(Number) as [
    number,
    number,
    number,
    number,
    number,
    number,
  ];
  const signingDate = new Date(Date.UTC(year, month - 1, day, hour, minute, second));
  const expected = await sign(
    { ...request, headers },
    { accessKeyId, secretAccessKey },
    { region, signingDate, signable: signed },
  );
  const found = readAuthorization(expected['authorization']);
  return found !== undefined && timingSafeEqual(found.signature, signature);
}

/** @returns the headers with the signature. `x-amz-content-sha256` is among those of the request. */
export async function sign(
  { method, path, query, headers }: SignableRequest,
  credentials: S3Credentials,
  options: { region: string; signingDate?: Date; signable?: ReadonlySet<string> },
): Promise<SignedHeaders> {
  const signer = new SignatureV4({
    service: 's3',
    region: options.region,
    credentials,
    sha256: Sha256,
    uriEscapePath: false,
    applyChecksum: false,
  });
  const signed = await signer.sign(
    { method, protocol: 'http:', hostname: headers['host'] ?? '', path, query, headers: { ...headers } },
    {
      ...(options.signingDate && { signingDate: options.signingDate }),
      ...(options.signable && { signableHeaders: new Set(options.signable) }),
    },
  );
  return signed.headers;
}
