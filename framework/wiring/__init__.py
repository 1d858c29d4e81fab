"""The composition root: settings in; clients, processes and supervisors out. Nothing else knows how parts are joined."""
