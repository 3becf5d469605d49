import { readFile } from 'node:fs/promises';
import { generateHostKey, type PreviewOptions, startGateway, type TlsOptions } from '@releap/gateway';
import { type Config, internalUrlOf, previewUrlOf, toolboxUrlOf, urlHost } from '../config/config.ts';
import { makePrivateFile } from '@releap/certificates/private-file';
import { SSH_PORT_OFFSET } from '../supervisor/ports.ts';
import { tokenFile, tokenToShow } from '../tokens.ts';
import type { RoleContext, RunningRole } from './run-role.ts';

/** The data plane: what reaches a sandbox from outside. */
export async function gatewayRole({ config, log }: RoleContext): Promise<RunningRole> {
  const missing = (): never => {
    throw new Error(`the role gateway needs RELEAP_GATEWAY_TOKEN, or ${tokenFile(config, 'gateway')}`);
  };
  if ((await tokenToShow(config, 'gateway')) === undefined) missing();
  const port = config.gatewayPort ?? config.port + 1;
  const previewUrl = previewUrlOf(config, port);
  const gateway = await startGateway({
    listen: { host: config.host, port },
    ...(previewUrl === undefined ? {} : { previews: previewOptions(config, new URL(previewUrl)) }),
    controlUrl: internalUrlOf(config),
    credential: async () => (await tokenToShow(config, 'gateway')) ?? missing(),
    ssh: await sshOptions(config),
    log,
  });
  const close = (): Promise<void> => gateway.close();
  return {
    facts: { url: config.toolboxUrl ?? toolboxUrlOf(`http://${urlHost(config.host)}:${gateway.port}`) },
    stop: close,
    detach: close,
  };
}

function previewOptions(
  { host, previewTls }: Config,
  { hostname, protocol }: URL,
): PreviewOptions & { tls?: TlsOptions } {
  const options = { domain: hostname.toLowerCase(), isTls: protocol === 'https:' };
  if (previewTls === undefined) return options;
  const { certificate, key, port } = previewTls;
  const load = async () => ({
    certificate: await readFile(certificate, 'utf8'),
    key: await readFile(key, 'utf8'),
  });
  return { ...options, tls: { listen: { host, port }, load } };
}

async function sshOptions({ port, ssh }: Config) {
  const { host, hostKeyFile } = ssh;
  const listen = { host, port: ssh.port ?? port + SSH_PORT_OFFSET };
  // Made once: clients remember it.
  await makePrivateFile(hostKeyFile, generateHostKey());
  const hostKeys = [await readFile(hostKeyFile, 'utf8')];
  return { listen, hostKeys, publicAddress: publicAddress(ssh.address, listen) };
}

/** As a client names it: IPv6 without brackets. */
function publicAddress(
  address: string | undefined,
  listen: { host: string; port: number },
): { host: string; port: number } {
  const [, host, port] = /^(.*?)(?::(\d+))?$/.exec(address ?? urlHost(listen.host)) ?? [];
  return {
    host: (host ?? listen.host).replace(/^\[|\]$/g, ''),
    port: port === undefined ? listen.port : Number(port),
  };
}
