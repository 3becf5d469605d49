/** From what people type (an id, the beginning of one, or a name) to one resource. */
import {
  isUuid,
  parseSandboxId,
  type HostRecord,
  type operatorOperations,
  type SandboxRecord,
  type SnapshotRecord,
} from '@releap/contract/wire';
import { hasStatus, ReleapError } from './error.ts';
import { pages } from './pages.ts';
import type { Service } from './service.ts';
import type { Client } from './types.ts';

/** An exact id wins over a name, a name over the beginning of an id. */
export async function findSandbox(service: Service, text: string): Promise<SandboxRecord> {
  requireText('sandbox', text);
  if (parseSandboxId(text) !== null) return service.api.getSandbox({ params: { id: text } });
  const named: SandboxRecord[] = [];
  const begun: SandboxRecord[] = [];
  for await (const sandbox of service.sandboxes()) {
    if (sandbox.status === 'deleted') continue;
    if (sandbox.name === text) named.push(sandbox);
    if (sandbox.id.startsWith(text) || randomPart(sandbox.id).startsWith(text)) begun.push(sandbox);
  }
  const matches = named.length > 0 ? named : begun;
  return only(
    matches,
    'sandbox',
    text,
    `${JSON.stringify(text)} means ${matches.length} sandboxes, use more of the id`,
  );
}

/** The id without its region, which all of them share. */
function randomPart(id: string): string {
  return id.slice(id.lastIndexOf('-') + 1);
}

/** Newest first. */
export function listSnapshots({ api }: Service): AsyncGenerator<SnapshotRecord> {
  return pages(api.listSnapshots, 'snapshots');
}

/** The snapshot of that id, else of that name: names are unique in a project. */
export async function findSnapshot(service: Service, text: string): Promise<SnapshotRecord> {
  requireText('snapshot', text);
  if (isUuid(text))
    try {
      return await service.api.getSnapshot({ params: { id: text } });
    } catch (error) {
      // A name may look like an id.
      if (!hasStatus(error, 404, 'snapshot_not_found')) throw error;
    }
  for await (const snapshot of listSnapshots(service)) if (snapshot.name === text) return snapshot;
  throw missing('snapshot', text);
}

type Operator = Client<typeof operatorOperations>;

export async function listHosts(api: Operator): Promise<HostRecord[]> {
  const { hosts }: { hosts?: HostRecord[] } = await api.listHosts();
  if (Array.isArray(hosts)) return hosts;
  throw new ReleapError(
    'malformed',
    'the service did not answer with a list of hosts: is it a Releap service?',
  );
}

/** The host of that id, else the only one of that name or with an id that begins so. Names need not be unique. */
export async function findHost(api: Operator, text: string): Promise<HostRecord> {
  requireText('host', text);
  const all = await listHosts(api);
  const [start, wanted] = [text.toLowerCase(), text.normalize('NFC')];
  const exact = all.filter(({ id }) => id === start);
  // A host that declares the beginning of another one's id as its name does not take its place.
  const matches =
    exact.length > 0 ? exact : all.filter(({ id, name }) => id.startsWith(start) || name === wanted);
  return only(
    matches,
    'host',
    text,
    `${JSON.stringify(text)} means ${matches.length} hosts, use more of an id`,
  );
}

/** The one of that id or name; an id wins. Names need not be unique. @param kind of the resource, as `project` */
export function findByName<T extends { id: string; name: string; org_name?: string }>(
  all: readonly T[],
  text: string,
  kind: string,
): T {
  const matches = all.filter(({ id }) => id === text.toLowerCase());
  if (matches.length === 0) matches.push(...all.filter(({ name }) => name === text));
  return only(
    matches,
    kind,
    text,
    `${matches.length} ${kind}s have the name ${JSON.stringify(text)}, use an id`,
  );
}

function requireText(kind: string, text: string): void {
  if (text === '') throw new ReleapError('invalid', `no ${kind} was named`);
}

const SHOWN = 5;

/** More than one match is an error that lists them. */
function only<T extends { id: string; name?: string | null; org_name?: string }>(
  matches: readonly T[],
  kind: string,
  text: string,
  ambiguous: string,
  by?: string,
): T {
  const [first, ...others] = matches;
  if (first === undefined) throw missing(kind, text, by);
  if (others.length === 0) return first;
  const shown = matches.slice(0, SHOWN).map(({ id, name, org_name }) => {
    const detail = org_name ?? name;
    return detail === undefined || detail === null || detail === text ? id : `${id} (${detail})`;
  });
  const more = matches.length > SHOWN ? ', …' : '';
  throw new ReleapError('invalid', `${ambiguous}: ${shown.join(', ')}${more}`);
}

function missing(resource: string, text: string, by = 'name or id'): ReleapError {
  const message = `no ${resource} has the ${by} ${JSON.stringify(text)}`;
  return new ReleapError('missing', message, { status: 404, resource });
}
