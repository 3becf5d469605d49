-- compatible-with: 25
-- `docker` has prepared nothing so far: what such an image was built to is what the registry has. Posted again, it is prepared.
update images set docker = false where docker and source ->> 'type' = 'registry';
