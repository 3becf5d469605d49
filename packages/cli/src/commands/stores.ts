/** `rlp store`: buckets of S3-compatible services that sandboxes can mount. */
import { OBJECT_STORE_PROVIDERS, type ObjectStoreCreateRequest } from '@releap/contract';
import { findSandbox, MOUNT_ANSWER_MS, unmountStore as unmount } from '@releap/sdk';
import { usageError } from '../cli-error.ts';
import { EXIT } from '../exit-codes.ts';
import { age, showTable } from '../output/table.ts';
import { parseDuration, parseMount } from '../parse/values.ts';
import { openService } from '../service.ts';
import { type Context, print, printJson, show } from '../terminal.ts';
import { forEachNamed } from './each.ts';

export interface StoreOptions {
  bucket: string;
  accessKeySecret: string;
  secretKeySecret: string;
  sessionTokenSecret?: string;
  endpoint?: string;
  region?: string;
  prefix?: string;
  pathStyle?: boolean;
  readOnly?: boolean;
  provider?: string;
  dirCache?: string;
}

export async function addStore(context: Context, name: string, options: StoreOptions): Promise<number> {
  const { dirCache, sessionTokenSecret } = options;
  const provider = OBJECT_STORE_PROVIDERS.find((one) => one === (options.provider ?? ''));
  if (provider === undefined)
    throw usageError(`--provider must be one of ${OBJECT_STORE_PROVIDERS.filter(Boolean).join(', ')}`);
  const body: ObjectStoreCreateRequest = {
    name,
    bucket: options.bucket,
    access_key_secret: options.accessKeySecret,
    secret_key_secret: options.secretKeySecret,
    ...(sessionTokenSecret === undefined ? {} : { session_token_secret: sessionTokenSecret }),
    endpoint: options.endpoint ?? '',
    region: options.region ?? '',
    prefix: options.prefix ?? '',
    path_style: options.pathStyle ?? false,
    read_only: options.readOnly ?? false,
    provider,
    dir_cache_secs: dirCache === undefined ? 0 : Math.ceil(parseDuration('--dir-cache', dirCache) / 1000),
  };
  const store = await openService(context).api.createObjectStore({ body });
  return show(context, store, () => store.name);
}

export async function listStores(context: Context, options: { all?: boolean }): Promise<number> {
  const service = openService(context);
  const { object_stores: stores } = await service.api.listObjectStores({
    query: { include_deleted: options.all ?? false },
  });
  return showTable(
    context,
    stores,
    ['NAME', 'BUCKET', 'PREFIX', 'ENDPOINT', 'MODE', 'STATE', 'AGE', 'ID'],
    (one) => [
      one.name,
      one.bucket,
      one.prefix || '-',
      one.endpoint || 'AWS',
      one.read_only ? 'ro' : 'rw',
      one.state,
      age(one.created_at),
      one.id,
    ],
  );
}

export async function removeStores(context: Context, names: string[]): Promise<number> {
  const service = openService(context);
  return await forEachNamed(context, 'store', names, async (name) => {
    if (name === '') throw usageError('the name of the store is empty');
    const { id } = await service.api.deleteObjectStore({ params: { id_or_name: name } });
    return { id, status: 'deleted', printed: name };
  });
}

export async function mountStore(context: Context, vm: string, text: string): Promise<number> {
  const body = parseMount(text);
  const service = openService(context);
  const { id } = await findSandbox(service, vm);
  const mount = await service.patient.mountObjectStore(
    { params: { id }, body },
    { timeoutMs: MOUNT_ANSWER_MS },
  );
  return show(context, mount, () => mount.mount_path);
}

export async function listMounts(context: Context, vm: string): Promise<number> {
  const service = openService(context);
  const { id } = await findSandbox(service, vm);
  const { object_store_mounts: mounts } = await service.api.listObjectStoreMounts({ params: { id } });
  return showTable(context, mounts, ['PATH', 'STORE', 'MODE', 'AGE'], (one) => [
    one.mount_path,
    one.object_store,
    one.read_only ? 'ro' : 'rw',
    age(one.created_at),
  ]);
}

export async function unmountStore(context: Context, vm: string, name: string): Promise<number> {
  if (name === '') throw usageError('the name of the store is empty');
  const service = openService(context);
  const { id } = await findSandbox(service, vm);
  const gone = await unmount(service, id, name);
  if (context.options.json) printJson(context, gone);
  else for (const path of gone.mount_paths) print(context, path);
  return EXIT.ok;
}
