import { readFile } from 'node:fs/promises';
import path from 'node:path';
import type { MaintainedCertificate } from '@releap/certificates';
import { generateHostKey, type PreviewOptions, startGateway, type TlsOptions } from '@releap/gateway';
import { type Config, internalUrlOf, previewUrlOf, toolboxUrlOf, urlHost } from '../config/config.ts';
import { makePrivateFile } from '@releap/certificates/private-file';
import { SSH_PORT_OFFSET } from '../supervisor/ports.ts';
import { tokenFile, tokenToShow } from '../tokens.ts';
import { certificateMetrics, serveMetrics } from './gateway-metrics.ts';
import { startPreviewCertificate } from './preview-certificate.ts';
import type { RoleContext, RunningRole } from './run-role.ts';

/** The data plane: what reaches a sandbox from outside. */
export async function gatewayRole({ config, log }: RoleContext): Promise<RunningRole> {
  const missing = (): never => {
    throw new Error(`the role gateway needs RELEAP_GATEWAY_TOKEN, or ${tokenFile(config, 'gateway')}`);
  };
  if ((await tokenToShow(config, 'gateway')) === undefined) missing();
  const port = config.gatewayPort ?? config.port + 1;
  const previewUrl = previewUrlOf(config, port);
  const previewPlace = previewUrl === undefined ? undefined : new URL(previewUrl);
  await using cleanup = new AsyncDisposableStack();
  const certificate = await previewCertificate(config, previewPlace, log);
  if (certificate !== undefined) {
    cleanup.defer(() => certificate.close());
    cleanup.use(
      await serveMetrics(path.join(config.home, 'run/gateway.sock'), certificateMetrics(certificate)),
    );
  }
  const gateway = await startGateway({
    listen: { host: config.host, port },
    ...(previewPlace === undefined ? {} : { previews: previewOptions(config, previewPlace, certificate) }),
    controlUrl: internalUrlOf(config),
    credential: async () => (await tokenToShow(config, 'gateway')) ?? missing(),
    ssh: await sshOptions(config),
    log,
  });
  cleanup.defer(() => gateway.close());
  const owned = cleanup.move();
  const close = (): Promise<void> => owned.disposeAsync();
  return {
    facts: { url: config.toolboxUrl ?? toolboxUrlOf(`http://${urlHost(config.host)}:${gateway.port}`) },
    stop: close,
    detach: close,
  };
}

async function previewCertificate(
  { home, previewTls }: Config,
  place: URL | undefined,
  log: RoleContext['log'],
): Promise<MaintainedCertificate | undefined> {
  if (previewTls === undefined || place === undefined) return undefined;
  return await startPreviewCertificate(previewTls, { home, domain: place.hostname.toLowerCase(), log });
}

function previewOptions(
  { host, previewTls }: Config,
  { hostname, protocol }: URL,
  certificate: MaintainedCertificate | undefined,
): PreviewOptions & { tls?: TlsOptions } {
  const options = { domain: hostname.toLowerCase(), isTls: protocol === 'https:' };
  if (previewTls === undefined || certificate === undefined) return options;
  const listen = { host, port: previewTls.port };
  return {
    ...options,
    tls: {
      listen,
      load: () => certificate.served(),
      onChange: (listener) => certificate.onChange(listener),
    },
  };
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
