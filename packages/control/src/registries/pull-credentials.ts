/**
 * Adds the projects' pull credentials to assignments when they are sent: they are decrypted here and sent over the link,
 * and are never stored in a row, job or record.
 */
import { parseImageReference, type RootSource } from '@releap/contract';
import { queryAll, statement, type Database } from '@releap/database';
import type { Logger } from 'pino';
import type { Encryption } from '../encryption/encryption.ts';
import { KeysUnavailableError } from '../encryption/keys.ts';

export interface PullCredentials {
  /** Whether `withPullCredentials` has anything to do. */
  needsPullCredentials(of: PullTarget): boolean;
  /** The same, with what their pulls need in `root`. In the order given; what needs nothing is not copied. */
  withPullCredentials<T extends PullTarget>(these: readonly T[]): Promise<T[]>;
}

/** An assignment of a project with a root file system: a sandbox, a build. */
export interface PullTarget {
  /** Null for the service's own. */
  project_id: string | null;
  root: RootSource;
  /** What is to go pulls nothing. */
  desired?: string;
}

const FIND = statement<{
  project_id: string;
  host: string;
  username: string;
  key_id: string;
  envelope: Buffer;
}>(
  'registry-credentials',
  `select c.project_id, c.host, c.username, c.key_id, c.envelope from registry_credentials c
     join unnest($1::uuid[], $2::text[]) as t(project_id, host) on c.project_id = t.project_id and c.host = t.host`,
);

type Access = Pick<Extract<RootSource, { type: 'registry' }>, 'credential' | 'no_credential'>;

export function createPullCredentials(
  database: Database,
  encryption: Encryption,
  log: Logger,
): PullCredentials {
  const needsPullCredentials = ({ project_id, root, desired }: PullTarget): boolean =>
    root.type === 'registry' && project_id !== null && desired !== 'deleted';

  async function find(pairs: [projectId: string, host: string][]): Promise<Map<string, Access>> {
    const found = new Map<string, Access>();
    for (const row of await queryAll(database.pool, FIND, [
      pairs.map(([id]) => id),
      pairs.map(([, host]) => host),
    ])) {
      const { project_id: projectId, host, username } = row;
      try {
        const password = await encryption.decrypt(
          { keyId: row.key_id, envelope: row.envelope },
          { kind: 'registry-password', projectId, name: host },
        );
        found.set(keyOf(projectId, host), { credential: { username, password } });
      } catch (error) {
        log.error({ err: error, project: projectId, host }, 'a registry credential could not be decrypted');
        const why =
          error instanceof KeysUnavailableError
            ? 'its key is temporarily unavailable'
            : 'it is damaged: write it again';
        found.set(keyOf(projectId, host), {
          no_credential: `the project's credential for ${host} cannot be used: ${why}`,
        });
      }
    }
    return found;
  }

  return {
    needsPullCredentials,
    async withPullCredentials(these) {
      const pairs = new Map<string, [string, string]>();
      const keys = these.map((one) => {
        if (!needsPullCredentials(one) || one.project_id === null || one.root.type !== 'registry')
          return undefined;
        const { host } = parseImageReference(one.root.ref);
        const key = keyOf(one.project_id, host);
        pairs.set(key, [one.project_id, host]);
        return key;
      });
      if (pairs.size === 0) return [...these];
      const found = await find([...pairs.values()]);
      return these.map((one, index) => {
        const access = found.get(keys[index] ?? '');
        return access === undefined ? one : { ...one, root: { ...one.root, ...access } };
      });
    },
  };
}

const keyOf = (projectId: string, host: string): string => `${projectId} ${host}`;
