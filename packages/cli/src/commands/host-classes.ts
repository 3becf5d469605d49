/** `rlp host show|set|rename`: one host, its classes of hardware and its name. */
import { CLASS_KINDS, type HostClassesRequest, type HostRecord } from '@releap/contract/wire';
import { findHost } from '@releap/sdk';
import { usageError } from '../cli-error.ts';
import { openOperator } from '../operator.ts';
import { movesTable, readMoves } from './host-moves.ts';
import { type Context, printable, show } from '../terminal.ts';

export interface HostSetOptions {
  cpuType?: string;
  networkClass?: string;
  diskClass?: string;
}

export interface HostRenameOptions {
  clear?: boolean;
}

/** Takes the place of a slug: what the host declares applies again. */
const DECLARED = 'declared';

/** Sets classes, which then win over those that the host declares. */
export async function setHostClasses(
  context: Context,
  text: string,
  options: HostSetOptions,
): Promise<number> {
  const given = {
    cpu_type: options.cpuType,
    network_class: options.networkClass,
    disk_class: options.diskClass,
  };
  const body: HostClassesRequest = {};
  for (const kind of CLASS_KINDS) {
    const slug = given[kind];
    if (slug !== undefined) body[kind] = slug === DECLARED ? null : slug;
  }
  if (Object.keys(body).length === 0) throw usageError('give --cpu-type, --network-class or --disk-class');
  const { api } = openOperator(context);
  const { host } = await api.setHostClasses({ params: { id: (await findHost(api, text)).id }, body });
  return show(context, { host }, () => describe(host));
}

/** Sets a name, which then wins over the one that the host declares. */
export async function renameHost(
  context: Context,
  text: string,
  name: string | undefined,
  { clear = false }: HostRenameOptions,
): Promise<number> {
  if ((name === undefined) !== clear) throw usageError('give a name, or --clear');
  const { api } = openOperator(context);
  const { id } = await findHost(api, text);
  const { host } = await api.setHostName({ params: { id }, body: { name: name ?? null } });
  return show(context, { host }, () => describe(host));
}

export async function showHost(context: Context, text: string): Promise<number> {
  const operator = openOperator(context);
  const host = await findHost(operator.api, text);
  const moves = await readMoves(operator, host.id);
  return show(context, { host, moves }, () =>
    moves.length === 0 ? describe(host) : `${describe(host)}\n\n${movesTable(moves)}`,
  );
}

function describe(host: HostRecord): string {
  const { facts, used, allocatable } = host;
  const lines: [string, string][] = [
    ['id', host.id],
    ['name', nameText(host)],
    ['region', host.region],
    ['status', `${host.status}${host.ready ? '' : ', not ready'}${host.draining ? ', draining' : ''}`],
    ['last seen', host.last_seen_at],
    ['join token', joinTokenText(host)],
    ['architecture', facts.arch],
    ['processor', facts.processor ?? 'not known'],
    ['processor of guests', `${facts.cpu_model} (${facts.accelerator})`],
    ['VMM', facts.vmm],
    ['cores', `${used.cpu} of ${allocatable.cpu} allocated`],
    ['memory', `${used.mem_mib} of ${allocatable.mem_mib} MiB allocated`],
    ['disk', `${used.disk_mib} of ${allocatable.disk_mib} MiB allocated`],
    ['GPUs', `${used.gpus} of ${allocatable.gpus} allocated`],
    ...CLASS_KINDS.map((kind): [string, string] => [kind, classText(host, kind)]),
  ];
  const width = Math.max(...lines.map(([name]) => name.length));
  return lines.map(([name, value]) => `${name.padEnd(width)}  ${printable(value)}`).join('\n');
}

function nameText({ name, renamed, facts }: HostRecord): string {
  if (!renamed) return name ?? 'not known';
  const declared = facts.name === undefined || facts.name === name ? '' : `; the host declares ${facts.name}`;
  return `${name}, ${SOURCES.operator}${declared}`;
}

function joinTokenText({ join_token: token }: HostRecord): string {
  if (token === null) return 'not known, or that of the deployment';
  return token.name === null ? token.id : `${token.id} (${token.name})`;
}

const SOURCES = {
  operator: 'set by the operator',
  host: 'declared by the host',
  model: 'by the name of its processor',
} as const;

function classText({ classes, facts }: HostRecord, kind: (typeof CLASS_KINDS)[number]): string {
  const has = classes[kind];
  const declared = facts.classes?.[kind];
  const ignored = declared === undefined || declared === has?.slug ? '' : `; the host declares ${declared}`;
  return has === null ? `none${ignored}` : `${has.slug}, tier ${has.tier}, ${SOURCES[has.source]}${ignored}`;
}

/** `zen4, 10g, -`: for a column of a table. */
export function classSlugs({ classes }: HostRecord): string {
  return CLASS_KINDS.map((kind) => classes[kind]?.slug ?? '-').join(', ');
}
