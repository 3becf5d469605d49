/** `rlp region`: what the operator does with regions and global regions. */
import type { OperatorRegion, RegionUpdateRequest } from '@releap/contract/wire';
import { usageError } from '../cli-error.ts';
import { EXIT } from '../exit-codes.ts';
import { readSecret } from '../input/read-secret.ts';
import { openOperator } from '../operator.ts';
import { table } from '../output/table.ts';
import { type Context, print, printJson, remark, show } from '../terminal.ts';

export interface RegionOptions {
  name?: string;
  enable?: boolean;
  disable?: boolean;
  default?: boolean;
  /** False with `--no-global`. */
  global?: string | false;
  toolboxUrl?: string;
  previewUrl?: string;
}

export async function listRegions(context: Context): Promise<number> {
  const list = await openOperator(context).api.listAllRegions();
  if (context.options.json) {
    printJson(context, list);
    return EXIT.ok;
  }
  print(
    context,
    table(
      ['REGION', 'NAME', 'STATUS', 'GLOBAL', 'HOSTS', 'SANDBOXES', 'TOOLBOX', 'PREVIEWS', 'STORE'],
      list.regions.map(row),
    ),
  );
  if (list.global_regions.length === 0) return EXIT.ok;
  const groups = list.global_regions.map(({ id, name, members }) => [id, name, members.join(', ') || '-']);
  print(context, `\n${table(['GLOBAL REGION', 'NAME', 'REGIONS'], groups)}`);
  return EXIT.ok;
}

function row(region: OperatorRegion): string[] {
  return [
    region.id,
    region.name,
    `${region.enabled ? 'enabled' : 'disabled'}${region.is_default ? ', default' : ''}`,
    region.global_region_id ?? '-',
    String(region.hosts),
    String(region.sandboxes),
    region.toolbox_proxy_url ?? '-',
    region.preview_url ?? '-',
    region.store === null ? '-' : bucketUrl(region.store),
  ];
}

export async function createRegion(context: Context, id: string, options: RegionOptions): Promise<number> {
  const region = await openOperator(context).api.createRegion({ body: { id, ...fields(options) } });
  return show(context, region, () => region.id);
}

export async function setRegion(context: Context, id: string, options: RegionOptions): Promise<number> {
  const body = fields(options);
  if (Object.keys(body).length === 0) throw usageError('name what to change: rlp region set --help lists it');
  const region = await openOperator(context).api.updateRegion({ params: { id }, body });
  const { organizations, projects } = region.default_of;
  if (!region.enabled && organizations + projects > 0)
    remark(
      context,
      `it is the default of ${organizations} organizations and ${projects} projects: their creates that name no region are refused`,
    );
  return show(context, region, () => region.id);
}

function fields(options: RegionOptions): RegionUpdateRequest {
  const { name, enable, disable, global: group, toolboxUrl, previewUrl } = options;
  if (enable && disable) throw usageError('--enable and --disable exclude each other');
  return {
    ...(name === undefined ? {} : { name }),
    ...(enable || disable ? { enabled: enable === true } : {}),
    ...(options.default ? { is_default: true } : {}),
    ...(group === undefined ? {} : { global_region_id: group === false ? null : group }),
    // An empty one removes it.
    ...(toolboxUrl === undefined ? {} : { toolbox_proxy_url: toolboxUrl || null }),
    ...(previewUrl === undefined ? {} : { preview_url: previewUrl || null }),
  };
}

export interface RegionStoreOptions {
  accessKeyId?: string;
  endpoint?: string;
  s3Region?: string;
}

const bucketUrl = ({ bucket, prefix }: { bucket: string; prefix: string }): string =>
  `s3://${bucket}${prefix === '' ? '' : `/${prefix}`}`;

/** @param url `s3://BUCKET[/PREFIX]`; `none`: the store of the deployment */
export async function setRegionStore(
  context: Context,
  id: string,
  url: string,
  { accessKeyId, endpoint, s3Region }: RegionStoreOptions,
): Promise<number> {
  const { api } = openOperator(context);
  const printed = (region: OperatorRegion) => (region.store === null ? 'none' : bucketUrl(region.store));
  if (url === 'none') {
    const region = await api.removeRegionStore({ params: { id } });
    return show(context, region, () => printed(region));
  }
  const [, bucket, prefix = ''] = /^s3:\/\/([^/]+)\/?(.*)$/.exec(url) ?? [];
  if (bucket === undefined) throw usageError(`${JSON.stringify(url)} is not s3://BUCKET[/PREFIX] or none`);
  if (accessKeyId === undefined) throw usageError('--access-key-id is required for a bucket');
  const region = await api.setRegionStore({
    params: { id },
    body: {
      bucket,
      prefix: prefix.replace(/\/+$/, ''),
      ...(endpoint === undefined ? {} : { endpoint: endpoint.replace(/\/+$/, '') }),
      ...(s3Region === undefined ? {} : { s3_region: s3Region }),
      credentials: {
        access_key_id: accessKeyId,
        secret_access_key: await readSecret(context, `secret of ${accessKeyId}`),
      },
    },
  });
  return show(context, region, () => printed(region));
}

export async function removeRegion(context: Context, id: string): Promise<number> {
  await openOperator(context).api.deleteRegion({ params: { id } });
  return show(context, { id, status: 'deleted' }, () => id);
}

/** Makes a group of regions, or renames it. */
export async function createGlobal(
  context: Context,
  id: string,
  options: { name?: string },
): Promise<number> {
  const { name } = options;
  const made = await openOperator(context).api.createGlobalRegion({
    body: { id, ...(name === undefined ? {} : { name }) },
  });
  return show(context, made, () => made.id);
}

export async function renameGlobal(context: Context, id: string, name: string): Promise<number> {
  const renamed = await openOperator(context).api.updateGlobalRegion({ params: { id }, body: { name } });
  return show(context, renamed, () => renamed.id);
}

export async function removeGlobal(context: Context, id: string): Promise<number> {
  await openOperator(context).api.deleteGlobalRegion({ params: { id } });
  return show(context, { id, status: 'deleted' }, () => id);
}

/** `none` returns to the default above. */
export async function setDefault(
  context: Context,
  region: string,
  { org, project }: { org?: string; project?: string },
): Promise<number> {
  const { api } = openOperator(context);
  const body = { region: region === 'none' ? null : region };
  if (org !== undefined && project === undefined)
    return show(context, await api.setDefaultRegionOfOrg({ params: { id: org }, body }), () => org);
  if (project !== undefined && org === undefined)
    return show(
      context,
      await api.setDefaultRegionOfProject({ params: { id: project }, body }),
      () => project,
    );
  throw usageError(
    'give --org or --project, one of them; rlp region set REGION --default is for the platform',
  );
}
