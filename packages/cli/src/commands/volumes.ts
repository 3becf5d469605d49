/** `rlp volume`: folders that outlive the sandboxes that have them mounted. */
import { usageError } from '../cli-error.ts';
import { EXIT } from '../exit-codes.ts';
import { age, shortTime, showTable, size, table } from '../output/table.ts';
import { parseGibibytes } from '../parse/values.ts';
import { openService } from '../service.ts';
import { type Context, print, printable, printJson, show } from '../terminal.ts';
import { forEachNamed } from './each.ts';

export async function createVolume(
  context: Context,
  name: string,
  options: { size?: string },
): Promise<number> {
  const volume = await openService(context).api.createVolume({
    body: {
      name,
      ...(options.size === undefined ? {} : { size_gb: parseGibibytes('--size', options.size) }),
    },
  });
  return show(context, volume, () => volume.name);
}

export async function listVolumes(context: Context, options: { all?: boolean }): Promise<number> {
  const { volumes } = await openService(context).api.listVolumes({
    query: { include_deleted: options.all ?? false },
  });
  return showTable(
    context,
    volumes,
    ['NAME', 'SIZE', 'USED', 'STATE', 'LAST USED', 'AGE', 'ID', 'ERROR'],
    (one) => [
      one.name,
      `${one.size_gb} GiB`,
      size(one.used_bytes),
      one.state,
      age(one.last_used_at),
      age(one.created_at),
      one.id,
      one.error_reason ?? '',
    ],
  );
}

export async function showVolume(context: Context, name: string): Promise<number> {
  const volume = await openService(context).api.getVolume({ params: { id_or_name: named(name) } });
  if (context.options.json) {
    printJson(context, volume);
    return EXIT.ok;
  }
  const lines: [string, string | undefined][] = [
    ['name', volume.name],
    ['id', volume.id],
    ['state', volume.state],
    ['size', `${volume.size_gb} GiB`],
    ['used', volume.used_bytes === undefined ? undefined : size(volume.used_bytes)],
    ['created', shortTime(volume.created_at)],
    ['last used', volume.last_used_at && shortTime(volume.last_used_at)],
    ['newest commit', volume.last_manifest_id],
    ['error', volume.error_reason],
    ['conflicts', volume.conflicts.length === 0 ? undefined : String(volume.conflicts.length)],
  ];
  for (const [what, value] of lines)
    if (value !== undefined) print(context, `${`${what}:`.padEnd(15)}${printable(value)}`);
  if (volume.conflicts.length > 0)
    print(
      context,
      `\n${table(
        ['PATH', 'OTHER VERSION', 'KIND', 'AGE'],
        volume.conflicts.map((one) => [one.path, one.kept_as, one.kind, age(one.created_at)]),
      )}`,
    );
  return EXIT.ok;
}

export async function removeVolumes(context: Context, names: string[]): Promise<number> {
  const { api } = openService(context);
  return await forEachNamed(context, 'volume', names, async (name) => {
    const { id } = await api.deleteVolume({ params: { id_or_name: named(name) } });
    return { id, status: 'deleted', printed: name };
  });
}

/** An empty one would name the list. */
export function named(name: string): string {
  if (name === '') throw usageError('the name of the volume is empty');
  return name;
}
