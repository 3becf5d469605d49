/**
 * The root certificate of a deployment. Its key is generated once, is stored encrypted, and never leaves the control
 * plane: runners get intermediates. It is replaced long before it expires: guests trust the next one for months before it signs
 * anything, because those that run trust what they were started with.
 */
import { X509Certificate } from 'node:crypto';
import type { RunnerCertificate } from '@releap/contract';
import type { ServiceKeys } from '../../platform/credentials/service-keys.ts';
import type { Root } from './certificates.ts';

const DAY_MS = 24 * 3_600_000;
/** A root is valid for ten years. */
const NEXT_AFTER_MS = 5 * 365 * DAY_MS;
/** How long guests trust the next root beside the current one, before intermediates are signed with it. */
const OVERLAP_MS = 180 * DAY_MS;
/** How long they trust the previous one: intermediates are valid for a week. */
const PREVIOUS_MS = 8 * DAY_MS;

interface StoredRoot extends Root {
  /** Trusted, and used later. `since` is in milliseconds. */
  next?: Root & { since: number };
  /** Trusted, and used before. */
  previous?: { certificate: string; until: number };
}

export interface EgressRoot {
  /** What guests trust, as PEM: one certificate, or while the root is being replaced two. @throws KeysUnavailableError */
  certificate(): Promise<string>;
  /** An intermediate for a runner, for these domains alone. @throws 400, KeysUnavailableError */
  issue(request: string, runnerId: string, domains: readonly string[]): Promise<RunnerCertificate>;
  /**
   * Makes the next root, or begins to use it, when it is time.
   * @returns what was done
   * @throws KeysUnavailableError
   */
  renew(): Promise<'announced' | 'replaced' | undefined>;
}

export interface EgressRootOptions {
  serviceKeys: ServiceKeys;
  /** Label of the deployment's roots. */
  label: () => Promise<string>;
  /** Default: the clock. */
  now?: () => number;
}

export function createEgressRoot({ serviceKeys, label, now = Date.now }: EgressRootOptions): EgressRoot {
  const read = async (): Promise<StoredRoot> =>
    JSON.parse(await serviceKeys.get('egress-root')) as StoredRoot;
  return {
    async certificate() {
      const { certificate, next, previous } = await read();
      const former = previous !== undefined && previous.until > now() ? previous.certificate : '';
      return `${certificate}${next?.certificate ?? ''}${former}`;
    },
    async issue(request, runnerId, domains) {
      const root = await read();
      const { signIntermediate } = await import('./certificates.ts');
      const { certificate, notAfter } = await signIntermediate(root, request, runnerId, domains);
      return { certificate, root: root.certificate, not_after: notAfter.toISOString() };
    },
    async renew() {
      let done: 'announced' | 'replaced' | undefined;
      const isReplaced = await serviceKeys.update('egress-root', async (text) => {
        const root = JSON.parse(text) as StoredRoot;
        done = dueStep(root, now());
        if (done === undefined) return undefined;
        if (done === 'replaced' && root.next !== undefined) {
          const { certificate, key } = root.next;
          const previous = { certificate: root.certificate, until: now() + PREVIOUS_MS };
          return JSON.stringify({ certificate, key, previous } satisfies StoredRoot);
        }
        const { createRoot } = await import('./certificates.ts');
        const next = { ...(await createRoot((await label()).slice(0, 8))), since: now() };
        return JSON.stringify({ ...root, next } satisfies StoredRoot);
      });
      return isReplaced ? done : undefined;
    },
  };
}

function dueStep({ certificate, next }: StoredRoot, now: number): 'announced' | 'replaced' | undefined {
  if (next !== undefined) return now - next.since >= OVERLAP_MS ? 'replaced' : undefined;
  return now - Date.parse(new X509Certificate(certificate).validFrom) >= NEXT_AFTER_MS
    ? 'announced'
    : undefined;
}

/** For `ServiceKeysOptions.makers`. */
export async function makeEgressRoot(deploymentId: string): Promise<string> {
  const { createRoot } = await import('./certificates.ts');
  return JSON.stringify(await createRoot(deploymentId.slice(0, 8)));
}
