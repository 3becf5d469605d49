import { startGateway } from '@releap/gateway';
import { internalUrlOf, urlHost } from '../config/config.ts';
import type { RoleContext, RunningRole } from './run-role.ts';

/** The data plane: what reaches a sandbox from outside. */
export async function gatewayRole({ config, internalToken, log }: RoleContext): Promise<RunningRole> {
  const gateway = await startGateway({
    listen: { host: config.host, port: config.gatewayPort ?? config.port + 1 },
    controlUrl: internalUrlOf(config),
    internalToken,
    log,
  });
  const close = (): Promise<void> => gateway.close();
  return {
    facts: { url: config.toolboxUrl ?? `http://${urlHost(config.host)}:${gateway.port}` },
    stop: close,
    letGo: close,
  };
}
