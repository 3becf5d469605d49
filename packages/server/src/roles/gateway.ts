import { startGateway } from '@releap/gateway';
import { internalUrlOf, toolboxUrlOf, urlHost } from '../config/config.ts';
import { tokenFile, tokenToShow } from '../tokens.ts';
import type { RoleContext, RunningRole } from './run-role.ts';

/** The data plane: what reaches a sandbox from outside. */
export async function gatewayRole({ config, log }: RoleContext): Promise<RunningRole> {
  const missing = (): never => {
    throw new Error(`the role gateway needs RELEAP_GATEWAY_TOKEN, or ${tokenFile(config, 'gateway')}`);
  };
  if ((await tokenToShow(config, 'gateway')) === undefined) missing();
  const gateway = await startGateway({
    listen: { host: config.host, port: config.gatewayPort ?? config.port + 1 },
    controlUrl: internalUrlOf(config),
    credential: async () => (await tokenToShow(config, 'gateway')) ?? missing(),
    log,
  });
  const close = (): Promise<void> => gateway.close();
  return {
    facts: { url: config.toolboxUrl ?? toolboxUrlOf(`http://${urlHost(config.host)}:${gateway.port}`) },
    stop: close,
    detach: close,
  };
}
