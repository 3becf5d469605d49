/**
 * Adds the projects' pull credentials to assignments when they are sent: they are decrypted here and sent over the link,
 * and are never stored in a row, job or record.
 */
import {
  parseImageReference,
  type DockerfileRoot,
  type RegistryKind,
  type RootSource,
} from '@releap/contract';
import { queryAll, statement, type Database } from '@releap/database';
import type { Logger } from 'pino';
import type { Encryption } from '../../platform/encryption/encryption.ts';
import { KeysUnavailableError } from '../../platform/encryption/keys.ts';

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

interface Row {
  project_id: string;
  host: string;
  kind: RegistryKind;
  username: string;
  key_id: string;
  envelope: Buffer;
}

const COLUMNS = 'c.project_id, c.host, c.kind, c.username, c.key_id, c.envelope';
const FIND = statement<Row>(
  'registry-credentials',
  `select ${COLUMNS} from registry_credentials c
     join unnest($1::uuid[], $2::text[]) as t(project_id, host) on c.project_id = t.project_id and c.host = t.host`,
);
/** Base images of a Dockerfile may be in any registry. $1 projects */
const FIND_ALL = statement<Row>(
  'registry-credentials-of-projects',
  `select ${COLUMNS} from registry_credentials c where c.project_id = any($1::uuid[]) order by c.project_id, c.host`,
);

/** Most characters of the credentials of one Dockerfile: an assignment is one message of the link. */
const BUILD_CREDENTIALS_CHARS = 2 * 1024 * 1024;

type Access = Pick<Extract<RootSource, { type: 'registry' }>, 'credential' | 'no_credential'>;
type BuildAccess = Pick<DockerfileRoot, 'credentials' | 'no_credentials'>;

export function createPullCredentials(
  database: Database,
  encryption: Encryption,
  log: Logger,
): PullCredentials {
  const needsPullCredentials = ({ project_id, root, desired }: PullTarget): boolean =>
    (root.type === 'registry' || root.type === 'dockerfile') && project_id !== null && desired !== 'deleted';

  /** Why a credential cannot be used, or its password. */
  async function open(row: Row): Promise<{ password: string } | { failure: string }> {
    const { project_id: projectId, host } = row;
    try {
      const sealed = { keyId: row.key_id, envelope: row.envelope };
      return {
        password: await encryption.decrypt(sealed, { kind: 'registry-password', projectId, name: host }),
      };
    } catch (error) {
      log.error({ err: error, project: projectId, host }, 'a registry credential could not be decrypted');
      const why =
        error instanceof KeysUnavailableError
          ? 'its key is temporarily unavailable'
          : 'it is damaged: write it again';
      return { failure: `the project's credential for ${host} cannot be used: ${why}` };
    }
  }

  async function find(pairs: readonly [projectId: string, host: string][]): Promise<Map<string, Access>> {
    const found = new Map<string, Access>();
    if (pairs.length === 0) return found;
    for (const row of await queryAll(database.pool, FIND, [
      pairs.map(([id]) => id),
      pairs.map(([, host]) => host),
    ])) {
      const opened = await open(row);
      found.set(
        keyOf(row.project_id, row.host),
        'failure' in opened
          ? { no_credential: opened.failure }
          : { credential: { kind: row.kind, username: row.username, password: opened.password } },
      );
    }
    return found;
  }

  async function findAll(projects: readonly string[]): Promise<Map<string, BuildAccess>> {
    const found = new Map<string, BuildAccess>();
    if (projects.length === 0) return found;
    const chars = new Map<string, number>();
    for (const row of await queryAll(database.pool, FIND_ALL, [projects])) {
      const { project_id: project, host, kind, username } = row;
      const opened = await open(row);
      const access: BuildAccess = found.get(project) ?? { credentials: [] };
      found.set(project, access);
      if ('failure' in opened) {
        (access.no_credentials ??= []).push({ host, reason: opened.failure });
        continue;
      }
      const credential = { host, kind, username, password: opened.password };
      const size = (chars.get(project) ?? 0) + JSON.stringify(credential).length;
      if (size > BUILD_CREDENTIALS_CHARS) {
        log.warn({ project, host }, 'a build gets no credential for this registry: the project has too many');
        const reason = `the project's credential for ${host} cannot be used: the project has too many for one build`;
        (access.no_credentials ??= []).push({ host, reason });
        continue;
      }
      chars.set(project, size);
      access.credentials.push(credential);
    }
    return found;
  }

  return {
    needsPullCredentials,
    async withPullCredentials(these) {
      const hosts = new Map<string, [string, string]>();
      const projects = new Set<string>();
      for (const one of these) {
        const { project_id: project, root } = one;
        if (project === null || !needsPullCredentials(one)) continue;
        if (root.type === 'dockerfile') projects.add(project);
        else if (root.type === 'registry') {
          const { host } = parseImageReference(root.ref);
          hosts.set(keyOf(project, host), [project, host]);
        }
      }
      if (hosts.size === 0 && projects.size === 0) return [...these];
      const found = await find([...hosts.values()]);
      const all = await findAll([...projects]);
      return these.map((one) => {
        const { project_id: project, root } = one;
        if (project === null || !needsPullCredentials(one)) return one;
        if (root.type === 'dockerfile')
          return { ...one, root: { ...root, ...(all.get(project) ?? { credentials: [] }) } };
        if (root.type !== 'registry') return one;
        const access = found.get(keyOf(project, parseImageReference(root.ref).host));
        return { ...one, root: { ...root, project_id: project, ...access } };
      });
    },
  };
}

const keyOf = (projectId: string, host: string): string => `${projectId} ${host}`;
