/** Length and digest of a file that never changes again. */
export interface Digest {
  bytes: number;
  sha256: string;
}

/** Far more than a host has; each takes some 200 bytes. */
const KNOWN_MAX = 100_000;
const known = new Map<string, Digest>();

/** What this process knows of an immutable layer or object, by its id: many folders have the same one. */
export function knownDigest(id: string): Digest | undefined {
  return known.get(id);
}

export function rememberDigest(id: string, digest: Digest): void {
  if (known.size >= KNOWN_MAX) known.delete(known.keys().next().value as string);
  known.set(id, digest);
}
