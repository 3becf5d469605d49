/** What a restore has brought back, and by name what it has not. */
import {
  hostContents,
  lostContents,
  missingBlobs,
  regionBuckets,
  type BlobStore,
  type HostContent,
  type LostContent,
} from '@releap/control/backup';
import type { Database } from '@releap/database';
import type { Header, Manifest } from './format.ts';

/** Not settings of the service. */
const OWN = ['RELEAP_HOME', 'RELEAP_BACKUP_PASSPHRASE'];

export async function restoreReport(options: {
  database: Database;
  store: BlobStore;
  header: Header;
  manifest: Manifest;
}): Promise<string> {
  const { database, store, header, manifest } = options;
  const { referenced, missing } = await missingBlobs(database.pool, store);
  const lost = await lostContents(database.pool, missing);
  const hosts = await hostContents(database.pool);
  const buckets = await regionBuckets(database.pool);
  const rows = manifest.tables.reduce((sum, table) => sum + table.rows, 0);
  return [
    `restored backup ${header.id} of ${header.created_at}: ${rows} rows in ${manifest.tables.length} tables, ${manifest.files.length} files`,
    '',
    `lost: everything since ${header.created_at} (${elapsed(Date.parse(header.created_at))}): what was created, changed, used and charged.`,
    'What was deleted or revoked since is back: revoke leaked keys again.',
    '',
    referenced === 0
      ? 'store: the database names no blobs'
      : `store: ${referenced - missing.length} of ${referenced} blobs are there`,
    ...lost.map(lostLine),
    ...(buckets.length === 0 ? [] : [`  not checked: the buckets of regions, ${buckets.join(', ')}`]),
    '',
    hosts.length === 0 ? 'hosts: the database knows none' : 'hosts, whose runners must connect again:',
    ...hosts.flatMap(hostLines),
    ...(hosts.length === 0
      ? []
      : ['A machine that is gone: rlp host forget HOST, and what only it had is lost.']),
    ...settingLines(manifest.settings),
    '',
  ].join('\n');
}

function lostLine({ kind, name, project, hosts, detail }: LostContent): string {
  const one = hosts.length === 1;
  const rescue =
    hosts.length === 0
      ? ''
      : `; ${one ? 'host' : 'hosts'} ${hosts.join(' and ')} ${one ? 'has it, if it connects' : 'have it, if they connect'} again`;
  return `  lost: ${kind} ${name} of project ${project}${detail === '' ? '' : `: ${detail}`}${rescue}`;
}

function hostLines({ id, region, sandboxes, snapshots, volumes }: HostContent): string[] {
  const only = [
    ['sandboxes', sandboxes],
    ['snapshots', snapshots],
    ['volumes with changes that were not committed', volumes],
  ] as const;
  return [
    `  ${id} (${region})${only.every(([, names]) => names.length === 0) ? ': nothing is on it alone' : ''}`,
    ...only.flatMap(([what, names]) => (names.length === 0 ? [] : [`    ${what}: ${names.join(', ')}`])),
  ];
}

/** Settings that this process does not have as the backup had them. */
function settingLines(settings: Readonly<Record<string, string>>): string[] {
  const differing = Object.entries(settings).filter(([name, value]) => {
    if (OWN.includes(name)) return false;
    const own = process.env[name];
    return value === '***' ? own === undefined : own !== value;
  });
  if (differing.length === 0) return [];
  return [
    '',
    'the backup was made with other settings:',
    ...differing.map(
      ([name, value]) => `  ${name}=${value} (now ${process.env[name] === undefined ? 'absent' : 'another'})`,
    ),
  ];
}

function elapsed(since: number): string {
  const minutes = Math.max(0, Math.round((Date.now() - since) / 60_000));
  const [count, unit] = minutes < 120 ? [minutes, 'minute'] : [Math.round(minutes / 60), 'hour'];
  return `${count} ${unit}${count === 1 ? '' : 's'}`;
}
