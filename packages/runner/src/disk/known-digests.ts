/** Length and SHA-256 of an immutable file. */
export interface Digest {
  bytes: number;
  sha256: string;
}

/** Far more layers than a host has; each entry takes about 200 bytes. */
const KNOWN_MAX = 100_000;
const known = new Map<string, Digest>();

/** Cached digest of an immutable layer or object, by id: many folders share the same file. */
export function knownDigest(id: string): Digest | undefined {
  return known.get(id);
}

export function rememberDigest(id: string, digest: Digest): void {
  if (known.size >= KNOWN_MAX) known.delete(known.keys().next().value as string);
  known.set(id, digest);
}
