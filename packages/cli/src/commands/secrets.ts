/** `rlp secret` and `rlp registry`: values of a project that cannot be read back. */
import type { RegistryKind } from '@releap/contract';
import type { Service } from '@releap/sdk';
import { usageError } from '../cli-error.ts';
import { readSecret } from '../input/read-secret.ts';
import { age, showTable } from '../output/table.ts';
import { openService } from '../service.ts';
import { type Context, printable, show } from '../terminal.ts';
import { forEachNamed } from './each.ts';

export interface SecretOptions {
  domain?: string[];
  allowHttp?: boolean;
  description?: string;
}

export interface RegistryOptions {
  username: string;
  kind?: string;
  description?: string;
}

export async function setSecret(context: Context, name: string, options: SecretOptions): Promise<number> {
  // Before the prompt. The service validates the rest.
  if (!/^[A-Za-z_][A-Za-z0-9_]{0,255}$/.test(name))
    throw usageError(
      `a secret has a name of letters, digits and _, which is that of its variable, but it was ${JSON.stringify(name)}`,
    );
  const service = openService(context);
  const value = await readSecret(context, `value of ${name}`);
  await service.api.putSecret({
    params: { name },
    body: {
      value,
      allowed_domains: options.domain ?? [],
      ...(options.allowHttp === true && { allow_http: true }),
      description: options.description,
    },
  });
  return show(context, { name }, () => name);
}

export async function listSecrets(context: Context): Promise<number> {
  const service = openService(context);
  const { secrets } = await service.api.listSecrets();
  return showTable(context, secrets, ['NAME', 'DOMAINS', 'SET', 'DESCRIPTION'], (one) => [
    one.name,
    one.allowed_domains.join(', ') || '-',
    age(one.updated_at),
    one.description ?? '',
  ]);
}

export async function removeSecrets(context: Context, names: string[]): Promise<number> {
  return await removeAll(context, 'secret', names, ({ api }, name) => api.deleteSecret({ params: { name } }));
}

export async function setRegistry(context: Context, host: string, options: RegistryOptions): Promise<number> {
  if (host === '') throw usageError('the host of the registry is empty');
  const service = openService(context);
  const password = await readSecret(
    context,
    `password of ${printable(options.username)} at ${printable(host)}`,
  );
  const { username, description } = options;
  // The service says which kinds there are.
  const kind = options.kind as RegistryKind | undefined;
  await service.api.putRegistry({ params: { host }, body: { username, password, kind, description } });
  return show(context, { host }, () => host);
}

export async function listRegistries(context: Context): Promise<number> {
  const service = openService(context);
  const { registries } = await service.api.listRegistries();
  return showTable(context, registries, ['HOST', 'KIND', 'USER', 'SET', 'DESCRIPTION'], (one) => [
    one.host,
    one.kind,
    one.username,
    age(one.updated_at),
    one.description ?? '',
  ]);
}

export async function removeRegistries(context: Context, hosts: string[]): Promise<number> {
  return await removeAll(context, 'registry', hosts, ({ api }, host) =>
    api.deleteRegistry({ params: { host } }),
  );
}

/** The response does not say whether it existed. */
async function removeAll(
  context: Context,
  what: string,
  names: readonly string[],
  remove: (service: Service, name: string) => Promise<unknown>,
): Promise<number> {
  const service = openService(context);
  return await forEachNamed(context, what, names, async (name) => {
    if (name === '') throw usageError(`the name of the ${what} is empty`);
    await remove(service, name);
    return { status: 'deleted', printed: name };
  });
}
