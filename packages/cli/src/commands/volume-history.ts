/** `rlp volume history|restore|commit`. */
import type { VolumeManifest } from '@releap/contract';
import { commitVolume as commit, pages, type Service } from '@releap/sdk';
import { isUuid } from '@releap/contract/ids';
import { CliError, usageError } from '../cli-error.ts';
import { EXIT } from '../exit-codes.ts';
import { Spinner } from '../output/spinner.ts';
import { age, shortTime, showTable, size } from '../output/table.ts';
import { openService } from '../service.ts';
import { type Context, print, printJson, show } from '../terminal.ts';
import { named } from './volumes.ts';

/** Newest first. */
function manifests({ patient }: Service, volume: string): AsyncGenerator<VolumeManifest> {
  return pages(
    ({ query }) => patient.listVolumeManifests({ params: { id_or_name: named(volume) }, query }),
    'manifests',
  );
}

export async function volumeHistory(context: Context, volume: string): Promise<number> {
  const found: VolumeManifest[] = [];
  for await (const one of manifests(openService(context), volume)) found.push(one);
  return showTable(
    context,
    found,
    ['COMMIT', 'AT (UTC)', 'AGE', 'REASON', 'USED', 'FILES', 'HOST'],
    (one) => [
      one.id,
      shortTime(one.created_at),
      age(one.created_at),
      one.restored_from === undefined ? one.reason : `${one.reason} of ${one.restored_from}`,
      size(one.used_bytes),
      String(one.files),
      one.runner_id ?? '-',
    ],
  );
}

export async function restoreVolume(context: Context, volume: string, commit: string): Promise<number> {
  const service = openService(context);
  const id = isUuid(commit) ? commit : await findManifest(service, volume, commit);
  const restored = await service.api.restoreVolume({
    params: { id_or_name: named(volume) },
    body: { manifest_id: id },
  });
  return show(context, restored, () => restored.last_manifest_id ?? '');
}

export async function commitVolume(context: Context, volume: string): Promise<number> {
  using spinner = new Spinner(context, `committing ${volume}`);
  const committed = await commit(openService(context), named(volume));
  spinner.stop();
  if (context.options.json) printJson(context, committed);
  // Nothing was ever written to it otherwise.
  else if (committed.last_manifest_id !== undefined) print(context, committed.last_manifest_id);
  return EXIT.ok;
}

async function findManifest(service: Service, volume: string, text: string): Promise<string> {
  if (!/^[0-9a-f][0-9a-f-]{3,}$/i.test(text))
    throw usageError(
      `${JSON.stringify(text)} is not the id of a commit, or at least 4 characters of its beginning`,
    );
  const found: string[] = [];
  for await (const { id } of manifests(service, volume))
    if (id.startsWith(text.toLowerCase())) found.push(id);
  const [only, ...others] = found;
  if (only === undefined)
    throw new CliError(`volume ${volume} has no commit ${text}: rlp volume history lists them`, {
      exitCode: EXIT.notFound,
    });
  if (others.length > 0)
    throw new CliError(`${text} is the beginning of ${found.length} commits: use more of the id`);
  return only;
}
