/** `rlp class ls|set|rm`: the classes of hardware that sandboxes may ask for. */
import { CLASS_KINDS, type ClassKind, type HardwareClass } from '@releap/contract/wire';
import { usageError } from '../cli-error.ts';
import { openOperator } from '../operator.ts';
import { showTable } from '../output/table.ts';
import { parseCount } from '../parse/values.ts';
import { type Context, show } from '../terminal.ts';

export interface ClassOptions {
  tier: string;
  name?: string;
  arch?: 'amd64' | 'arm64';
  model?: string[];
}

export async function listClasses(context: Context): Promise<number> {
  const { classes } = await openOperator(context).api.listHardwareClasses();
  return showTable(context, classes, ['KIND', 'SLUG', 'TIER', 'ARCH', 'HOSTS', 'NAME', 'MODELS'], row);
}

function row({ kind, slug, tier, arch, hosts, name, cpu_models: models }: HardwareClass): string[] {
  return [kind, slug, String(tier), arch ?? '-', String(hosts), name, models.join(', ') || '-'];
}

/** Replaces the whole definition. */
export async function setClass(
  context: Context,
  kind: string,
  slug: string,
  { tier, name, arch, model }: ClassOptions,
): Promise<number> {
  const defined = await openOperator(context).api.putHardwareClass({
    params: { kind: kindOf(kind), id: slug },
    body: {
      tier: parseCount('--tier', tier),
      ...(name === undefined ? {} : { name }),
      ...(arch === undefined ? {} : { arch }),
      ...(model === undefined ? {} : { cpu_models: model }),
    },
  });
  return show(context, defined, () => defined.slug);
}

export async function removeClass(context: Context, kind: string, slug: string): Promise<number> {
  const params = { kind: kindOf(kind), id: slug };
  await openOperator(context).api.deleteHardwareClass({ params });
  return show(context, { kind, slug, status: 'deleted' }, () => slug);
}

function kindOf(text: string): ClassKind {
  const kind = CLASS_KINDS.find((one) => one === text);
  if (kind === undefined)
    throw usageError(`a class is one of ${CLASS_KINDS.join(', ')}, but was ${JSON.stringify(text)}`);
  return kind;
}
