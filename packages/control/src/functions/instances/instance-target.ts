import { badRequest, isUuid, notFound, quote } from '@releap/contract';
import type { TargetRequest, TargetResolver } from '../../edge/gateways/target-resolver.ts';
import { InstanceEnded } from './instance-watch.ts';
import type { FunctionInstances } from './instances.ts';

/**
 * One sandbox that serves a version of a function, leased to the gateway that asks. No client's credential is involved: the
 * gateway has checked it for the function.
 */
export function functionInstanceTarget(instances: FunctionInstances): TargetResolver {
  /** Leased for requests that are not answered yet: another attempt continues with the same one. */
  const leased = new WeakMap<TargetRequest, string>();
  return {
    kind: 'function-instance',
    waits: true,
    subject: ({ instance }) => instance ?? null,
    async resolve({ version_id: versionId = '', instance }, _token, request) {
      const { gatewayId, signal } = request;
      if (gatewayId === undefined)
        throw badRequest('a gateway without gateway_id in its hello cannot lease instances');
      if (!isUuid(versionId))
        throw notFound(`function version ${quote(versionId)} not found`, 'function_version_not_found');
      if (instance !== undefined && !isUuid(instance))
        throw notFound(`instance ${quote(instance)} not found`);
      let sandboxId = leased.get(request);
      if (sandboxId === undefined) {
        if (instance === undefined) sandboxId = await instances.lease(versionId, gatewayId, request);
        else await instances.reclaim(instance, versionId, gatewayId, request);
        sandboxId ??= instance ?? '';
        leased.set(request, sandboxId);
      }
      if (instance === undefined) {
        try {
          await instances.running(sandboxId, gatewayId, signal);
        } catch (error) {
          // Its template could not be restored, and is no longer used.
          if (!(error instanceof InstanceEnded)) throw error;
          const { template_id: templateId, runner_id: runnerId } = error.state;
          if (templateId === null || runnerId === null) throw error;
          sandboxId = await instances.lease(versionId, gatewayId, request);
          leased.set(request, sandboxId);
          await instances.running(sandboxId, gatewayId, signal);
        }
        // Its changes are watched once it runs: those of its start would count as changes of the target.
        request.watch(sandboxId);
      }
      const { projectId, runnerId, dataUrl } = await instances.running(sandboxId, gatewayId, signal);
      return { sandboxId, runnerId, dataUrl, credential: { type: 'service', projectId } };
    },
  };
}
