SERVERS := python3 deploy/servers/servers.py

.PHONY: servers
servers: ## bring PostgreSQL and nats-server into the cache
	@$(SERVERS)
