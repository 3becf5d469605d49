import { createHash } from 'node:crypto';
import { DomainSet, type InterceptSecret } from '@releap/contract/netd';
import { RefusedRequest } from './refused-request.ts';
import type { Match, Matcher } from './rewriter.ts';

const PREFIX = Buffer.from('rlps_');
/** Of the characters after the prefix. */
const BODY_BYTES = 43;
const PLACEHOLDER_BYTES = PREFIX.length + BODY_BYTES;

/** How a value is written where its placeholder was. */
export type Encoding = 'raw' | 'json' | 'url' | 'path';

/** Values with fewer bytes are not searched for in responses: they would be found everywhere. */
const SCRUB_MIN_BYTES = 8;

interface Secret {
  readonly value: string;
  readonly domains: DomainSet;
  readonly allowHttp: boolean;
  /** What programs of the sandbox know it as. */
  readonly placeholder: string;
}

/** The secrets of one sandbox. */
export class SandboxSecrets {
  /** By SHA-256 of the placeholder, base64. */
  readonly #byDigest = new Map<string, Secret>();
  readonly #secrets: Secret[];
  /** By host, bounded. */
  readonly #scrubbers = new Map<string, readonly Needle[]>();

  readonly #isEncrypted: boolean;

  /** @param isEncrypted whether connections are over TLS: without it only secrets that allow that are replaced */
  constructor(secrets: readonly InterceptSecret[], isEncrypted = true) {
    this.#isEncrypted = isEncrypted;
    this.#secrets = secrets.map((secret) => {
      const known: Secret = {
        value: secret.value,
        domains: DomainSet.of(secret.allowed_domains),
        allowHttp: secret.allow_http === true,
        placeholder: secret.placeholder ?? 'rlps_'.padEnd(PLACEHOLDER_BYTES, 'x'),
      };
      for (const digest of secret.placeholders)
        this.#byDigest.set(Buffer.from(digest, 'hex').toString('base64'), known);
      return known;
    });
  }

  /** Where any of them may be sent: names and patterns. */
  get domains(): string[] {
    return this.#secrets.flatMap(({ domains }) => domains.list());
  }

  /** Whether any secret may be sent to this host. */
  allows(host: string): boolean {
    return this.#secrets.some(({ domains }) => domains.matches(host));
  }

  /**
   * Replaces placeholders by values that may be sent to this host. Others are left as they are.
   * @param onReplaced called for each
   * @returns a matcher that throws RefusedRequest where a value would go over plain HTTP against the secret's word
   */
  matcher(host: string, encoding: Encoding, onReplaced: () => void): Matcher {
    return {
      next: (data, from) => {
        for (let at = data.indexOf(PREFIX, from); at !== -1; at = data.indexOf(PREFIX, at + 1)) {
          if (at + PLACEHOLDER_BYTES > data.length) return undefined;
          const found = this.#resolve(data.subarray(at, at + PLACEHOLDER_BYTES), host);
          const replacement = found === undefined ? undefined : encode(found, encoding);
          if (replacement === undefined) continue;
          onReplaced();
          return { start: at, end: at + PLACEHOLDER_BYTES, replacement };
        }
        return undefined;
      },
      pending: (data, from) => {
        const tail = Math.max(from, data.length - PLACEHOLDER_BYTES + 1);
        for (
          let at = data.indexOf(PREFIX[0] ?? 0, tail);
          at !== -1;
          at = data.indexOf(PREFIX[0] ?? 0, at + 1)
        ) {
          const rest = data.subarray(at);
          if (mayBecomePlaceholder(rest)) return rest.length;
        }
        return 0;
      },
    };
  }

  /** As `matcher`, for text of a request's head: a string of bytes (latin1). */
  replaceIn(text: string, host: string, encoding: Encoding, onReplaced: () => void): string {
    if (!text.includes('rlps_')) return text;
    const matcher = this.matcher(host, encoding, onReplaced);
    const data = Buffer.from(text, 'latin1');
    let out = '';
    let at = 0;
    for (let match = matcher.next(data, at); match; match = matcher.next(data, at)) {
      out += data.toString('latin1', at, match.start) + match.replacement.toString('latin1');
      at = match.end;
    }
    return out + data.toString('latin1', at);
  }

  /** Whether there is anything to search for in responses of this host. */
  scrubs(host: string): boolean {
    return this.#needles(host).length > 0;
  }

  /**
   * Replaces values that may be sent to this host by their placeholders, also where they are escaped as in JSON or a URL.
   * @param sameLength keeps the length of the data: the placeholder is cut or padded
   */
  scrubber(host: string, sameLength: boolean): Matcher {
    const needles = this.#needles(host);
    return {
      next(data, from) {
        let first: Match | undefined;
        for (const { bytes, placeholder } of needles) {
          const at = data.indexOf(bytes, from);
          if (at === -1 || (first !== undefined && at >= first.start)) continue;
          const replacement = sameLength ? sized(placeholder, bytes.length) : placeholder;
          first = { start: at, end: at + bytes.length, replacement };
        }
        return first;
      },
      pending: (data, from) => Math.max(0, ...needles.map((needle) => needle.prefixAtEnd(data, from))),
    };
  }

  #resolve(placeholder: Buffer, host: string): string | undefined {
    if (!isPlaceholderBody(placeholder, PREFIX.length)) return undefined;
    const found = this.#byDigest.get(createHash('sha256').update(placeholder).digest('base64'));
    if (found?.domains.matches(host) !== true) return undefined;
    if (!this.#isEncrypted && !found.allowHttp)
      throw new RefusedRequest(
        403,
        `the request has the placeholder of a secret and goes to http://${host}, where everyone on the way could read the value: ` +
          'use https://, or set allow_http of the secret',
      );
    return found.value;
  }

  #needles(host: string): readonly Needle[] {
    const known = this.#scrubbers.get(host);
    if (known !== undefined) return known;
    const needles = this.#secrets
      .filter(({ value, domains }) => domains.matches(host) && Buffer.byteLength(value) >= SCRUB_MIN_BYTES)
      .flatMap(({ value, placeholder }) => {
        const forms = [value, jsonEscaped(value), encodeURIComponent(value.toWellFormed())];
        return [...new Set(forms)].map((form) => new Needle(Buffer.from(form), Buffer.from(placeholder)));
      })
      // Of two at the same place the longer one is replaced.
      .sort((a, b) => b.bytes.length - a.bytes.length);
    if (this.#scrubbers.size > 1_000) this.#scrubbers.clear();
    this.#scrubbers.set(host, needles);
    return needles;
  }
}

/** What is searched for, with the table of Knuth, Morris and Pratt. */
class Needle {
  readonly bytes: Buffer;
  readonly placeholder: Buffer;
  /** Length of the longest proper prefix that ends at each byte. */
  readonly #borders: Int32Array;

  constructor(bytes: Buffer, placeholder: Buffer) {
    this.bytes = bytes;
    this.placeholder = placeholder;
    this.#borders = new Int32Array(bytes.length);
    for (let at = 1, length = 0; at < bytes.length; at++) {
      length = this.#extend(length, bytes[at] ?? 0);
      this.#borders[at] = length;
    }
  }

  /** Length of the longest proper prefix of the needle that the data ends with, not before `from`. */
  prefixAtEnd(data: Buffer, from: number): number {
    let length = 0;
    for (let at = Math.max(from, data.length - this.bytes.length + 1); at < data.length; at++)
      length = this.#extend(length, data[at] ?? 0);
    return length;
  }

  #extend(matched: number, byte: number): number {
    let length = matched;
    while (length > 0 && this.bytes[length] !== byte) length = this.#borders[length - 1] ?? 0;
    return this.bytes[length] === byte ? length + 1 : 0;
  }
}

function mayBecomePlaceholder(rest: Buffer): boolean {
  const head = Math.min(rest.length, PREFIX.length);
  if (PREFIX.compare(rest, 0, head, 0, head) !== 0) return false;
  return isPlaceholderBody(rest, PREFIX.length);
}

function isPlaceholderBody(bytes: Buffer, from: number): boolean {
  for (let at = from; at < bytes.length; at++) {
    const byte = bytes[at] ?? 0;
    const isAlphanumeric =
      (byte >= 48 && byte <= 57) || (byte >= 65 && byte <= 90) || (byte >= 97 && byte <= 122);
    if (!isAlphanumeric) return false;
  }
  return true;
}

function encode(value: string, encoding: Encoding): Buffer {
  if (encoding === 'raw') return Buffer.from(value);
  if (encoding === 'json') return Buffer.from(jsonEscaped(value));
  const escaped = encodeURIComponent(value.toWellFormed());
  if (encoding === 'url') return Buffer.from(escaped);
  // What RFC 3986 allows in a path, so that a value of several segments stays one.
  return Buffer.from(
    escaped.replaceAll(/%(?:2F|3A|40|24|26|2B|2C|3B|3D)/g, (text) => decodeURIComponent(text)),
  );
}

function jsonEscaped(value: string): string {
  return JSON.stringify(value).slice(1, -1);
}

function sized(placeholder: Buffer, length: number): Buffer {
  const out = Buffer.alloc(length, '*');
  placeholder.copy(out, 0, 0, length);
  return out;
}
