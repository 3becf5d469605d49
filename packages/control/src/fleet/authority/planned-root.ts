/**
 * A root certificate of the deployment. Its key is generated once, is stored encrypted, and never leaves the control plane. It is
 * replaced long before it expires: those that rely on it trust the next root for a while before that signs anything, and the
 * previous one for as long as what it has signed is valid.
 */
import { X509Certificate } from 'node:crypto';
import type { ServiceKeyName, ServiceKeys } from '../../platform/credentials/service-keys.ts';

export interface Root {
  /** PEM. */
  certificate: string;
  /** PKCS #8, base64. */
  key: string;
}

interface StoredRoot extends Root {
  /** Trusted, and used later. `since` is in milliseconds. */
  next?: Root & { since: number };
  /** Trusted, and used before. */
  previous?: { certificate: string; until: number };
}

/** When a root is replaced, in milliseconds. */
export interface RootPlan {
  /** Age at which the next one is announced. */
  nextAfterMs: number;
  /** How long it is trusted before it signs. */
  overlapMs: number;
  /** How long the previous one is trusted afterwards. */
  previousMs: number;
}

export interface PlannedRoot {
  /** What is trusted, as PEM: one certificate, or while the root is being replaced two. @throws KeysUnavailableError */
  trusted(): Promise<string>;
  /** What signs. @throws KeysUnavailableError */
  signing(): Promise<Root>;
  /**
   * Makes the next root, or begins to use it, when it is time.
   * @returns what was done
   * @throws KeysUnavailableError
   */
  renew(): Promise<'announced' | 'replaced' | undefined>;
}

export interface PlannedRootOptions {
  serviceKeys: ServiceKeys;
  name: ServiceKeyName;
  plan: RootPlan;
  make: () => Promise<Root>;
  /** Default: the clock. */
  now?: (() => number) | undefined;
}

export function createPlannedRoot({
  serviceKeys,
  name,
  plan,
  make,
  now = Date.now,
}: PlannedRootOptions): PlannedRoot {
  const read = async (): Promise<StoredRoot> => JSON.parse(await serviceKeys.get(name)) as StoredRoot;
  return {
    signing: read,
    async trusted() {
      const { certificate, next, previous } = await read();
      const former = previous !== undefined && previous.until > now() ? previous.certificate : '';
      return `${certificate}${next?.certificate ?? ''}${former}`;
    },
    async renew() {
      let done: 'announced' | 'replaced' | undefined;
      const isReplaced = await serviceKeys.update(name, async (text) => {
        const root = JSON.parse(text) as StoredRoot;
        done = dueStep(root, plan, now());
        if (done === undefined) return undefined;
        if (done === 'replaced' && root.next !== undefined) {
          const { certificate, key } = root.next;
          const previous = { certificate: root.certificate, until: now() + plan.previousMs };
          return JSON.stringify({ certificate, key, previous } satisfies StoredRoot);
        }
        const next = { ...(await make()), since: now() };
        return JSON.stringify({ ...root, next } satisfies StoredRoot);
      });
      return isReplaced ? done : undefined;
    },
  };
}

function dueStep(
  { certificate, next }: StoredRoot,
  { nextAfterMs, overlapMs }: RootPlan,
  now: number,
): 'announced' | 'replaced' | undefined {
  if (next !== undefined) return now - next.since >= overlapMs ? 'replaced' : undefined;
  return now - Date.parse(new X509Certificate(certificate).validFrom) >= nextAfterMs
    ? 'announced'
    : undefined;
}
